// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/seed.hpp"

#include <cstdlib>

namespace mylos::test {

unsigned seed_of_tests() {
  const char* seed = std::getenv("MYLOS_SEED");
  return seed != nullptr ? static_cast<unsigned>(std::strtoul(seed, nullptr, 10)) : 1;
}

}  // namespace mylos::test
