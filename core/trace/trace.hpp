// SPDX-License-Identifier: BSD-3-Clause
// Trace: when each event of a step began and ended.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/compute_backend.hpp"

namespace mylos {

/// The kind of an event. Phases contain the other events. The other events follow one another, so their times
/// can be added.
enum class TraceKind : std::uint8_t { phase, operation, communication, data };
inline constexpr int num_trace_kinds = 4;

constexpr std::string_view name_of(TraceKind kind) {
  constexpr std::array<std::string_view, num_trace_kinds> names = {"phase", "operation", "communication",
                                                                   "data"};
  return names[static_cast<std::size_t>(kind)];
}

/// The shape (I, O) of a linear layer's weights.
struct LinearShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
};

struct TraceEvent {
  std::string_view name;  ///< a string literal
  TraceKind kind = TraceKind::operation;
  LinearShape shape;         ///< of a linear layer, otherwise 0 x 0
  const char* by = nullptr;  ///< the backend that ran the operation, or the axes of the communicator
  std::int64_t begin = 0;    ///< nanoseconds since `Trace::start`
  std::int64_t end = 0;
  // Of passes and what they contain, else -1.
  int micro_batch = -1;
  int chunk = -1;
  const void* entry = nullptr;  ///< of a program (Entry), whose operation it is; else null

  /// Returns, for example, "read_samples", "adamw (kokkos)", "linear_forward 768x2304 (onednn)" or
  /// "all_reduce wait (data)".
  std::string label() const;
};

/// The events of one thread, recorded between `start` and `stop` without allocating. An event lasts until the
/// device has finished, so tracing serialises the work: nothing overlaps on a device while the trace is on.
class Trace {
 public:
  /// A range of the backend from construction to destruction, recorded if the trace is on.
  class Scope {
   public:
    Scope(Trace& trace, std::string_view name, TraceKind kind, LinearShape shape, const char* by);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    /// Sets the backend that took the operation. If `taker` is null, nothing is recorded.
    void taken_by(const char* taker);

   private:
    Trace& trace_;
    bool records_;
    TraceEvent event_;
  };

  /// An event ends when the queue of `backend` is empty, and is also one of the backend's ranges. `backend`
  /// must outlive the trace.
  explicit Trace(ComputeBackend& backend) : backend_(backend) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Default capacity, in events. Unused capacity takes no physical memory.
  static constexpr std::size_t room = std::size_t{1} << 18U;
  /// Additional room for phases, which end after the events that they enclose; the step ends last.
  static constexpr std::size_t room_for_phases = 4096;
  /// Discards earlier events and starts recording. Allocates all memory that recording needs.
  void start(std::size_t most_events = room);
  void stop() { on_ = false; }
  bool on() const { return on_; }

  /// Records an event that lasts as long as the returned scope. `name` must be a string literal. `by` and the
  /// text that `taken_by` is given must outlive the events of the trace.
  [[nodiscard]] Scope record(std::string_view name, TraceKind kind = TraceKind::operation,
                             LinearShape shape = {}, const char* by = nullptr) {
    return {*this, name, kind, shape, by};
  }

  /// Events that begin from now on belong to a pass, or to an entry of the pass.
  void set_pass(int micro_batch, int chunk) {
    micro_batch_ = micro_batch;
    chunk_ = chunk;
    entry_ = nullptr;
  }
  void set_entry(const void* entry) { entry_ = entry; }

  /// Returns the events in the order in which they ended.
  std::span<const TraceEvent> events() const { return events_; }
  /// Returns the number of events for which there was no room.
  std::int64_t num_lost() const { return num_lost_; }

 private:
  std::int64_t now() const;
  void add(const TraceEvent& event);

  ComputeBackend& backend_;
  std::vector<TraceEvent> events_;
  std::chrono::steady_clock::time_point origin_;
  std::size_t most_events_ = 0;
  std::int64_t num_lost_ = 0;
  int micro_batch_ = -1;
  int chunk_ = -1;
  const void* entry_ = nullptr;
  bool on_ = false;
};

/// The number and total time of all events with one label.
struct OperationTime {
  std::string label;
  TraceKind kind = TraceKind::operation;
  std::int64_t calls = 0;
  double seconds = 0.0;
};

/// Where the time of one step went.
struct StepProfile {
  std::int64_t step = 0;                  ///< 0 if the step has no number
  double seconds = 0.0;                   ///< of the step
  std::vector<OperationTime> operations;  ///< the longest first; no phases

  /// Returns the seconds of all operations; the rest of the step was spent between them.
  double covered() const;
};

/// The name of the phase that spans the whole step.
inline constexpr std::string_view whole_step = "step";

/// Adds up the events of each label.
StepProfile profile_of(const Trace& trace);

}  // namespace mylos
