// SPDX-License-Identifier: BSD-3-Clause
// The limit on a process' last moments, which no other rank watches any more.
#pragma once

#include <chrono>

namespace mylos {

/// Lets the kernel kill this process (SIGKILL, timer_create(2)), even a stopped one, unless it has ended
/// after `patience`. Another call starts the time anew. Without a timer, nothing is killed.
void kill_unless_ended_within(std::chrono::milliseconds patience);

}  // namespace mylos
