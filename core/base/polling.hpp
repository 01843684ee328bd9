// SPDX-License-Identifier: BSD-3-Clause
// Polling: a wait that remains usable with more ranks than cores.
#pragma once

#include <sched.h>

namespace mylos {

/// Calls `test` until it returns true: spins briefly, then yields the core between calls.
void poll_until(auto&& test) {
  constexpr int polls_before_yield = 100;
  for (int polls = 1; !test(); ++polls) {
    if (polls > polls_before_yield) sched_yield();
  }
}

}  // namespace mylos
