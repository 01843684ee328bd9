// SPDX-License-Identifier: BSD-3-Clause
// WatchdogLimits: how long silence, a collective, a computation and a file-system call may last.
#pragma once

#include <algorithm>
#include <chrono>

namespace mylos {

struct WatchdogLimits {
  std::chrono::milliseconds silence{5000};  ///< a rank without a heartbeat for longer has stopped
  /// A collective or computation that takes longer has stalled.
  std::chrono::milliseconds operation_timeout{600000};
  std::chrono::milliseconds io_timeout{600000};  ///< a file-system call that takes longer is taken to hang

  /// The time between heartbeats and between looks, so short that several heartbeats must be missed
  /// before a rank counts as silent.
  std::chrono::milliseconds heartbeat() const {
    constexpr int beats_per_silence = 8;
    return std::clamp(silence / beats_per_silence, std::chrono::milliseconds(1),
                      std::chrono::milliseconds(200));
  }
};

}  // namespace mylos
