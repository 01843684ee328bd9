// SPDX-License-Identifier: BSD-3-Clause
// Waiting for another process, for tests: for an event, never for a time.
#pragma once

#include <chrono>
#include <functional>

namespace mylos::test {

/// Turns a hang into a failure; far beyond what any wait of a test takes, also on a busy machine.
constexpr std::chrono::seconds hang_limit{240};

/// Polls `condition`; false if it does not become true within `hang_limit`.
bool wait_until(const std::function<bool()>& condition);

}  // namespace mylos::test
