// SPDX-License-Identifier: BSD-3-Clause
// CollectiveQueue: the pending collectives of one communicator, in order, as tickets.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "backends/comm_shm/progress_engine.hpp"
#include "backends/comm_shm/shared_part.hpp"

namespace mylos::comm_shm {

/// A collective as a sequence of tickets. Each ticket has two phases: first, every rank fills (offers its
/// data); after all ranks have filled, every rank works (reads the data of the other ranks, or writes into
/// their windows).
struct Collective {
  std::int64_t tickets = 1;
  /// Copies the data of ticket `t` into slot `slot` of this rank. Null if the ranks access each other's data
  /// in windows. The windows are then in use until every rank has worked the last ticket.
  std::function<void(std::int64_t t, int slot)> fill;
  std::function<void(std::int64_t t, int slot)> work;
  bool needs_previous = false;  ///< its input is the result of the previous collective
  std::shared_ptr<Completion> completion;
};

/// Every rank makes the same tickets in the same order. A rank publishes how many tickets it has filled and
/// worked. A slot is filled again once every rank has worked the ticket that used it before.
class CollectiveQueue final : public Progressing {
 public:
  /// `bells`: one for each rank of the communicator.
  CollectiveQueue(const std::vector<SharedPart>& parts, int rank, std::vector<Doorbell*> bells);

  /// Called with the engine's lock held.
  void push(Collective collective);
  bool advance() override;

 private:
  struct UnderWay {
    Collective collective;
    std::int64_t filled = 0;
    std::int64_t worked = 0;
    std::uint64_t last_ticket = 0;
  };

  bool fill_next();
  bool work_next();
  bool complete_next();
  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t value);

  const std::vector<SharedPart>& parts_;
  int rank_;
  std::vector<Doorbell*> bells_;
  std::deque<std::shared_ptr<UnderWay>> to_fill_;
  std::deque<std::shared_ptr<UnderWay>> to_work_;
  std::deque<std::shared_ptr<UnderWay>> to_complete_;  // worked by this rank, in windows
  std::uint64_t filled_ = 0;                           // tickets of this rank, as published
  std::uint64_t worked_ = 0;
  std::array<std::uint64_t, SharedPart::num_slots> slot_used_{};  // `filled_` at its last use
  int next_slot_to_fill_ = 0;
  int next_slot_to_work_ = 0;
};

}  // namespace mylos::comm_shm
