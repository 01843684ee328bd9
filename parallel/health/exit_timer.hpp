// SPDX-License-Identifier: BSD-3-Clause
// kill_unless_ended_within: limits the time that a process takes to exit once no other rank watches it.
#pragma once

#include <chrono>

namespace mylos {

/// Has the kernel kill this process (SIGKILL, timer_create(2)), even if it is stopped, unless it ends within
/// `patience`. A later call restarts the timer. If no timer can be created, nothing is killed.
void kill_unless_ended_within(std::chrono::milliseconds patience);

}  // namespace mylos
