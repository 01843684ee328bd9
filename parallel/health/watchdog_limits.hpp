// SPDX-License-Identifier: BSD-3-Clause
// WatchdogLimits: how patient a rank is with others.
#pragma once

#include <algorithm>
#include <chrono>

namespace mylos {

struct WatchdogLimits {
  std::chrono::milliseconds silence{5000};              ///< without a heartbeat for so long: a stopped rank
  std::chrono::milliseconds operation_timeout{600000};  ///< in a collective for so long: it stalls
  std::chrono::milliseconds io_timeout{600000};  ///< in a call of the file system for so long: it hangs

  /// How often a rank beats and looks: often enough that a late beat is no silence.
  std::chrono::milliseconds heartbeat() const {
    constexpr int beats_per_silence = 8;
    return std::clamp(silence / beats_per_silence, std::chrono::milliseconds(1),
                      std::chrono::milliseconds(200));
  }
};

}  // namespace mylos
