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

  FailureDetector(int own_rank, const WatchdogLimits& limits) : own_rank_(own_rank), limits_(limits) {}

  void set_limits(const WatchdogLimits& limits) { limits_ = limits; }

  /// Notes the state of the ranks at `now`. Returns true if a rank has stopped or an operation stalls, and
  /// this rank must report it, because every lower rank in `node` is silent or finished, or because the
  /// failure has lasted longer than the limit on silence. `node` must live until the next look.
  bool look(const std::vector<RankFlight>& node, TimePoint now);
  /// One line that names the stopped rank or the stalled operation that the last look found, whether or not
  /// this rank must report it; empty if there is no failure.
  std::string_view reason() const { return reason_.view(); }
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
  bool is_reporter() const;

  int own_rank_;
  WatchdogLimits limits_;
  const std::vector<RankFlight>* node_ = nullptr;
  std::vector<Sight> sights_;
  std::optional<TimePoint> looked_at_;
  std::chrono::nanoseconds clock_{};                  // the time counted so far
  std::optional<std::chrono::nanoseconds> found_at_;  // when the failure was first seen
  FixedText reason_{reason_bytes};
  FixedText report_{reason_bytes};
  ExitCode code_ = ExitCode::done;

  static constexpr std::size_t reason_bytes = 4096;
};

}  // namespace mylos
