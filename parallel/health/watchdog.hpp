// SPDX-License-Identifier: BSD-3-Clause
// Watchdog: a thread in every process that finds stopped ranks and stalled collectives of its node.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/health/flight_recorder.hpp"

namespace mylos {

struct WatchdogLimits {
  std::chrono::milliseconds heartbeat{200};
  std::chrono::milliseconds silence{5000};              ///< without a heartbeat for so long: a stopped rank
  std::chrono::milliseconds operation_timeout{600000};  ///< under way for so long: a stalled collective
};

/// Beats for this rank, however long its other threads compute, and watches the node's other ranks. The
/// lowest rank that still beats prints the last operations of all to stderr and calls `on_failure` with one
/// line that names the rank or the operation; the handler ends the job. Limits count from what this thread
/// itself has seen, so a job that was suspended as a whole and continued is not taken for a failed one.
class Watchdog {
 public:
  Watchdog(FlightRecorder& recorder, const WatchdogLimits& limits,
           std::function<void(const std::string& reason)> on_failure);
  /// Stops the thread; tells the others that this rank has finished.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  /// What was last seen of a rank, and since when.
  struct Sight {
    std::uint64_t heartbeats = 0;
    Clock::time_point beat_at;
    std::uint64_t open_number = 0;
    Clock::time_point open_since;
  };

  void run(const std::stop_token& stop);
  void look(Clock::time_point now);
  /// One line on what is wrong, or "".
  std::string judge(Clock::time_point now) const;
  bool silent(std::size_t i, Clock::time_point now) const;
  /// Whether it is on this rank to report a failure seen at `found_at`.
  bool is_reporter(Clock::time_point now, Clock::time_point found_at) const;
  void print(const std::string& reason, Clock::time_point now) const;

  FlightRecorder& recorder_;
  WatchdogLimits limits_;
  std::function<void(const std::string&)> on_failure_;
  std::vector<RankFlight> node_;
  std::vector<Sight> sights_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace mylos
