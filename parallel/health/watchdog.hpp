// SPDX-License-Identifier: BSD-3-Clause
// Watchdog: a thread in every process that finds stopped ranks and stalled collectives of its node.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "parallel/health/failure_detector.hpp"
#include "parallel/health/flight_recorder.hpp"

namespace mylos {

/// Beats for this rank, however long its other threads compute, and watches the node's other ranks. The rank
/// whose turn it is (FailureDetector) prints the last operations of all to stderr and calls `on_failure` with
/// one line that names the rank or the operation; the handler ends the job.
class Watchdog {
 public:
  Watchdog(FlightRecorder& recorder, const WatchdogLimits& limits,
           std::function<void(const std::string& reason)> on_failure);
  /// Stops the thread; tells the others that this rank has finished.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run(const std::stop_token& stop);

  FlightRecorder& recorder_;
  std::chrono::milliseconds heartbeat_;
  FailureDetector detector_;
  std::function<void(const std::string&)> on_failure_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace mylos
