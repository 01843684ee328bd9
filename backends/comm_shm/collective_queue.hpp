// SPDX-License-Identifier: BSD-3-Clause
// CollectiveQueue: the collectives of one communicator that are under way, in order, as tickets.
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

/// A collective as a sequence of tickets. Each has two phases: every rank fills (offers its data), then, when
/// all have filled, works (reads the others' data, or writes into their windows).
struct Collective {
  std::int64_t tickets = 1;
  /// Copies data of ticket `t` into slot `slot` of this rank; null where all data lies in windows, which are
  /// busy until every rank has worked.
  std::function<void(std::int64_t t, int slot)> fill;
  std::function<void(std::int64_t t, int slot)> work;
  bool needs_previous = false;  ///< fills what the collective before it makes
  std::shared_ptr<Completion> completion;
};

/// Every rank makes the same tickets in the same order. A rank publishes how many it has filled and worked; a
/// slot is filled again when every rank has worked the ticket that used it before.
class CollectiveQueue final : public Progressing {
 public:
  /// `bells` are those of all ranks of the communicator.
  CollectiveQueue(const std::vector<SharedPart>& parts, int rank, std::vector<Doorbell*> bells);

  /// With the engine's lock held.
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
  std::deque<std::shared_ptr<UnderWay>> to_complete_;  // those in windows
  std::uint64_t filled_ = 0;                           // tickets, as published
  std::uint64_t worked_ = 0;
  std::array<std::uint64_t, SharedPart::num_slots> slot_used_{};  // number of tickets up to its last use
  int next_slot_to_fill_ = 0;
  int next_slot_to_work_ = 0;
};

}  // namespace mylos::comm_shm
