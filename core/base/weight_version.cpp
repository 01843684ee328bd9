// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/weight_version.hpp"

#include <atomic>

namespace mylos {

std::uint64_t new_weight_version() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace mylos
