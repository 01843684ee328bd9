// SPDX-License-Identifier: BSD-3-Clause
// How tests wait for another process: for an event, never for a fixed time.
#pragma once

#include <chrono>
#include <functional>
#include <sys/types.h>

namespace mylos::test {

/// Turns a hang into a failure; far longer than any wait of a test, even on a busy machine.
constexpr std::chrono::seconds hang_limit{240};

/// Polls `condition`; false if it does not become true within `hang_limit`.
bool wait_until(const std::function<bool()>& condition);

/// Whether a signal has stopped the process.
bool is_stopped(pid_t process);

}  // namespace mylos::test
