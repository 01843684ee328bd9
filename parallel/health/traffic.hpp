// SPDX-License-Identifier: BSD-3-Clause
// Traffic: communication counted by axis and operation, and checked in debug builds.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/communication/forwarding_communicator.hpp"

namespace mylos {

class FlightRecorder;

struct TrafficRow {
  std::string axis;
  CommOperation operation = CommOperation::all_reduce;
  std::uint64_t calls = 0;
  std::uint64_t payload_bytes = 0;

  bool operator==(const TrafficRow&) const = default;
};

/// Subtracts the calls and bytes of `part` from the rows of `all`; rows without calls are left out.
std::vector<TrafficRow> subtract(std::vector<TrafficRow> all, const std::vector<TrafficRow>& part);

/// Calls and payload (CommCall::payload_bytes) of this rank by axis and operation. Thread-safe.
class TrafficCounter {
 public:
  /// The counts of one axis. An object of this class lives as long as the counter.
  class Axis {
   public:
    explicit Axis(std::string label) : label_(std::move(label)) {}

    const std::string& label() const { return label_; }
    void count(CommOperation operation, std::uint64_t payload_bytes) {
      calls_[static_cast<std::size_t>(operation)] += 1;
      bytes_[static_cast<std::size_t>(operation)] += payload_bytes;
    }
    std::uint64_t calls(CommOperation operation) const { return calls_[static_cast<std::size_t>(operation)]; }
    std::uint64_t payload_bytes(CommOperation operation) const {
      return bytes_[static_cast<std::size_t>(operation)];
    }

   private:
    std::string label_;
    std::array<std::atomic<std::uint64_t>, num_operations> calls_{};
    std::array<std::atomic<std::uint64_t>, num_operations> bytes_{};
  };

  /// The counts of `label`, made on the first call.
  Axis& axis(std::string_view label);
  /// Every axis and operation in use, in the order in which the axes were made.
  std::vector<TrafficRow> table() const;

 private:
  mutable std::mutex mutex_;
  std::deque<Axis> axes_;
};

#ifdef NDEBUG
inline constexpr bool calls_are_checked = false;
#else
inline constexpr bool calls_are_checked = true;
#endif

/// Counts every operation, and notes it in the flight recorder from the call to the wait, with the entry of
/// the program that makes it.
///
/// In debug builds it also checks that all ranks make the same call, unless the call is one of a program:
/// their lists are compared at set-up (list_check.hpp). Before each collective, a blocking all_reduce of (h,
/// -h) with `max` gives the largest and the smallest hash h of the operation, its type, bytes (except in
/// all_to_all_v), reduction and root. If they differ, the calls are gathered, and all ranks throw
/// ExitCode::watchdog with the call of every rank; a rank is named by its number in the world if there is a
/// recorder. The checks use host memory, so they are left out if the host cannot reach the buffers. The
/// communicators of a split are not counted: they belong to other axes, and the caller wraps them under their
/// own labels.
class CountedCommunicator final : public ForwardingCommunicator {
 public:
  /// `label` names the axis. `counter` and `recorder` (null: no record) must outlive this object.
  CountedCommunicator(NextCommunicator next, std::string_view label, TrafficCounter& counter,
                      FlightRecorder* recorder, bool host_buffers = true);

  void barrier() override;

 private:
  Request start(const CommCall& call) override;
  Request start_message(const CommCall& call);
  /// Throws unless all ranks make the same call.
  void check(const CommCall& call);

  TrafficCounter::Axis* axis_;
  FlightRecorder* recorder_;
  bool checked_;
};

}  // namespace mylos
