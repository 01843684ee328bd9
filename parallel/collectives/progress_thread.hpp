// SPDX-License-Identifier: BSD-3-Clause
// ProgressThread: a thread that advances communication while other threads compute.
#pragma once

#include <chrono>
#include <thread>

#include "core/communication/communicator.hpp"

namespace mylos {

/// Calls `communicator.progress()` from construction to destruction, and sleeps for `pause` between calls.
class ProgressThread {
 public:
  explicit ProgressThread(Communicator& communicator,
                          std::chrono::microseconds pause = std::chrono::microseconds(100))
      : thread_([&communicator, pause](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            communicator.progress();
            std::this_thread::sleep_for(pause);
          }
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace mylos
