// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/waiting.hpp"

#include <thread>

namespace mylos::test {

bool wait_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + hang_limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace mylos::test
