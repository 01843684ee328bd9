// SPDX-License-Identifier: BSD-3-Clause
// FailureDetector: judges from the ranks' flight pages whether a rank has stopped or an operation stalls.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "parallel/health/fixed_text.hpp"
#include "parallel/health/flight_recorder.hpp"
#include "parallel/health/watchdog_limits.hpp"

namespace mylos {

/// One rank's judgement of the ranks that it sees. The detector reads no clock: the caller passes the time of
/// every look. Time during which this rank is suspended hardly counts: each look adds at most a quarter of
/// the limit on silence, so a job that is suspended as a whole and resumed is not taken for a failed one.
/// Looks allocate nothing once the ranks are known.
class FailureDetector {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `has_other_nodes`: the job's ranks are on several nodes, so another node's rank sees this node's lowest
  /// rank (FlightRecorder::receive).
  FailureDetector(int own_rank, const WatchdogLimits& limits, bool has_other_nodes = false)
      : own_rank_(own_rank), limits_(limits), has_other_nodes_(has_other_nodes) {}

  void set_limits(const WatchdogLimits& limits) { limits_ = limits; }

  /// Notes the state of the ranks at `now`. Returns true if a rank has stopped or an operation stalls, and it
  /// is this rank's turn to report it. The ranks that see a failure take turns, each as long as the limit on
  /// silence, so that one of them reports, at once if it can. If a rank is silent that only its own node
  /// sees, that node's ranks have turns in ascending order. If the silent rank is the lowest of its node, the
  /// rank of another node that sees it comes first. If an operation stalls, all nodes may see it: the ranks
  /// of a node then wait for the node before it if that one has seen a failure too. `node` must live until
  /// the next look.
  bool look(const std::vector<RankFlight>& node, TimePoint now);
  /// One line that names the stopped rank or the stalled operation that the last look found, whether or not
  /// this rank must report it; empty if there is no failure.
  std::string_view reason() const { return reason_.view(); }
  bool sees_failure() const { return !reason_.view().empty(); }
  ExitCode code() const { return code_; }
  /// The reason and the last operations of every rank.
  std::string_view report();
  bool is_silent(std::size_t i) const;

 private:
  /// The last observations of a rank, and their times.
  struct Sight {
    std::uint64_t heartbeats = 0;
    std::chrono::nanoseconds beat_at{};
    std::array<std::uint64_t, num_call_kinds> open_number{};  // the oldest open operation of each kind
    std::array<std::chrono::nanoseconds, num_call_kinds> open_since{};
  };

  void update_sights();
  /// Writes the failure to `reason_`, if there is one.
  void judge();
  void judge_operations(CallKind kind, std::chrono::milliseconds limit, ExitCode code);
  /// The rank of another node, if it is alive; else null.
  const RankFlight* rank_of_other_node() const;
  /// How many ranks have their turn before this one, with the failure that was found.
  int num_turns_before() const;
  bool is_turn() const;

  int own_rank_;
  WatchdogLimits limits_;
  bool has_other_nodes_;
  const std::vector<RankFlight>* node_ = nullptr;
  std::vector<Sight> sights_;
  std::optional<TimePoint> looked_at_;
  std::chrono::nanoseconds clock_{};                  // the time counted so far
  std::optional<std::chrono::nanoseconds> found_at_;  // when the failure was first seen
  std::size_t failed_ = 0;  // the index of the rank that is silent or whose operation stalls
  FixedText reason_{reason_bytes};
  FixedText report_{reason_bytes};
  ExitCode code_ = ExitCode::done;

  static constexpr std::size_t reason_bytes = 4096;
};

}  // namespace mylos
