// SPDX-License-Identifier: BSD-3-Clause
// Polling: how a rank waits so that more ranks than cores stay usable.
#pragma once

#include <sched.h>

namespace mylos {

/// Calls `test` until it is true: spins shortly, then yields the core between the calls.
template <class Test>
void poll_until(Test&& test) {
  constexpr int polls_before_yield = 100;
  for (int polls = 1; !test(); ++polls) {
    if (polls > polls_before_yield) sched_yield();
  }
}

}  // namespace mylos
