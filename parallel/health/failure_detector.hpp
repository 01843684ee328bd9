// SPDX-License-Identifier: BSD-3-Clause
// FailureDetector: judges from what the ranks of a node show whether one has stopped or a collective stalls.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/health/flight_recorder.hpp"

namespace mylos {

struct WatchdogLimits {
  std::chrono::milliseconds heartbeat{200};
  std::chrono::milliseconds silence{5000};              ///< without a heartbeat for so long: a stopped rank
  std::chrono::milliseconds operation_timeout{600000};  ///< under way for so long: a stalled collective
};

/// What one rank thinks of its node. It knows no clock: every look comes with its time, and limits count from
/// what these looks have seen. After a long gap between two looks this process was itself stopped, and what
/// it remembers of the others is too old to judge by; so a job that was suspended as a whole and continued is
/// not taken for a failed one.
class FailureDetector {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  FailureDetector(int own_rank, const WatchdogLimits& limits) : own_rank_(own_rank), limits_(limits) {}

  /// Takes in what the ranks of the node show at `now`. Returns one line that names the stopped rank or the
  /// stalled operation if there is one and this rank is to report it, otherwise "". The lowest rank that
  /// still beats reports; if it has not ended the job after `silence`, all others do.
  std::string look(std::vector<RankFlight> node, TimePoint now);
  /// `reason` and the last operations of every rank, as of the last look.
  std::string report(const std::string& reason) const;

 private:
  /// What was last seen of a rank, and since when.
  struct Sight {
    std::uint64_t heartbeats = 0;
    TimePoint beat_at;
    std::uint64_t open_number = 0;
    TimePoint open_since;
  };

  void update_sights();
  /// One line on what is wrong, or "".
  std::string judge() const;
  bool is_silent(std::size_t i) const;
  bool is_reporter() const;

  int own_rank_;
  WatchdogLimits limits_;
  std::vector<RankFlight> node_;
  std::vector<Sight> sights_;
  TimePoint now_;                      // of the last look
  std::optional<TimePoint> found_at_;  // when what is wrong was first seen
};

}  // namespace mylos
