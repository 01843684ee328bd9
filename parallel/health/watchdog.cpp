// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/watchdog.hpp"

#include <chrono>
#include <cstdio>
#include <utility>

namespace mylos {

Watchdog::Watchdog(FlightRecorder& recorder, const WatchdogLimits& limits,
                   std::function<void(const std::string&)> on_failure)
    : recorder_(recorder),
      heartbeat_(limits.heartbeat),
      detector_(recorder.rank(), limits),
      on_failure_(std::move(on_failure)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

Watchdog::~Watchdog() {
  recorder_.finish();
  thread_.request_stop();
  wake_.notify_all();
}

void Watchdog::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const auto now = std::chrono::steady_clock::now();
    recorder_.beat();
    if (const std::string reason = detector_.look(recorder_.read_node(), now); !reason.empty()) {
      std::fputs(detector_.report(reason).c_str(), stderr);
      std::fflush(stderr);
      on_failure_(reason);
      return;
    }
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop, heartbeat_, [] { return false; });
  }
}

}  // namespace mylos
