// SPDX-License-Identifier: BSD-3-Clause
#include "tests/faults/driven_clock.hpp"

#include <thread>

#include "tests/support/waiting.hpp"

namespace mylos::test {

std::int64_t seconds_until_end(const Job& job, DrivenClock& clock, std::chrono::milliseconds step,
                               std::chrono::milliseconds between_looks) {
  const std::int64_t begin = clock.seconds();
  wait_until([&] {
    if (!job.running()) return true;
    clock.advance(step);
    std::this_thread::sleep_for(between_looks);
    return false;
  });
  return clock.seconds() - begin;
}

}  // namespace mylos::test
