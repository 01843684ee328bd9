// SPDX-License-Identifier: BSD-3-Clause
// Traffic: communication counted by axis and operation, and checked in debug builds.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/forwarding_communicator.hpp"

namespace mylos {

class FlightRecorder;

enum class CommOperation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  all_to_all,
  all_to_all_v,
  send,
  recv,
  barrier,
};
inline constexpr int num_operations = 10;

constexpr std::string_view name_of(CommOperation operation) {
  constexpr std::array<std::string_view, num_operations> names = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
      "all_to_all", "all_to_all_v",   "send",       "recv",      "barrier"};
  return names[static_cast<std::size_t>(operation)];
}

struct TrafficRow {
  std::string axis;
  CommOperation operation = CommOperation::all_reduce;
  std::uint64_t calls = 0;
  std::uint64_t payload_bytes = 0;

  bool operator==(const TrafficRow&) const = default;
};

/// Subtracts the calls and bytes of `part` from the rows of `all`; rows without calls are left out.
std::vector<TrafficRow> subtract(std::vector<TrafficRow> all, const std::vector<TrafficRow>& part);

struct TrafficTotals {
  std::uint64_t calls = 0;
  std::uint64_t payload_bytes = 0;

  friend TrafficTotals operator-(const TrafficTotals& a, const TrafficTotals& b) {
    return {a.calls - b.calls, a.payload_bytes - b.payload_bytes};
  }
};

/// Calls and payload of this rank by axis and operation. Payload is the size in bytes of one buffer argument,
/// whatever an algorithm sends for it: the buffer of all_reduce, broadcast, reduce, send and recv, the input
/// of reduce_scatter and all_to_all, the output of all_gather, the sum of the send counts of all_to_all_v.
/// Thread-safe.
class TrafficCounter {
 public:
  /// The counts of one axis; lives as long as the counter.
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
  /// All axes and operations together; allocates nothing.
  TrafficTotals totals() const;

 private:
  mutable std::mutex mutex_;
  std::deque<Axis> axes_;
};

#ifdef NDEBUG
inline constexpr bool calls_are_checked = false;
#else
inline constexpr bool calls_are_checked = true;
#endif

/// Counts every operation, and notes it in the flight recorder from the call to the wait.
///
/// In debug builds it also checks that all ranks make the same call. Before each collective, a blocking
/// all_reduce of (h, -h) with `max` gives the largest and the smallest hash h of the operation, its type,
/// bytes (except in all_to_all_v), reduction and root. If they differ, the calls are gathered, and all ranks
/// throw ExitCode::watchdog with the call of every rank; a rank is named by its number in the world if there
/// is a recorder. The checks use host memory, so they are left out if the host cannot reach the buffers. The
/// communicators of a split are not counted: they belong to other axes, and the caller wraps them under their
/// own labels.
class CountedCommunicator final : public ForwardingCommunicator {
 public:
  /// `label` names the axis. `counter` and `recorder` (null: no record) must outlive this.
  CountedCommunicator(NextCommunicator next, std::string_view label, TrafficCounter& counter,
                      FlightRecorder* recorder, bool host_buffers = true);

  Request all_reduce(TensorRef buffer, ReduceOp op) override;
  Request reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) override;
  Request all_gather(TensorRef input, TensorRef output) override;
  Request broadcast(TensorRef buffer, int root) override;
  Request reduce(TensorRef buffer, ReduceOp op, int root) override;
  Request all_to_all(TensorRef input, TensorRef output) override;
  Request all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts, TensorRef output,
                       std::span<const std::int64_t> recv_counts) override;
  Request send(TensorRef buffer, int peer, int tag) override;
  Request recv(TensorRef buffer, int peer, int tag) override;
  void barrier() override;

 private:
  /// The properties that all ranks must agree on.
  struct Call {
    CommOperation operation;
    DType dtype = DType::uint8;
    std::uint64_t bytes = 0;
    int detail = 0;  // number of the reduction, of the root, or of both
  };

  /// Counts and records a call; returns its number in the flight recorder.
  std::uint64_t begin(CommOperation operation, std::uint64_t payload_bytes);
  void check(const Call& call);
  /// `inner` wrapped so that waiting for it marks operation `number` as complete.
  Request track(Request inner, std::uint64_t number);

  TrafficCounter::Axis* axis_;
  FlightRecorder* recorder_;
  bool checked_;
};

}  // namespace mylos
