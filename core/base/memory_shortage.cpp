// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/memory_shortage.hpp"

#include <cstddef>
#include <sys/mman.h>

namespace mylos {

bool memory_is_short() {
  constexpr std::size_t probe = std::size_t{256} << 20U;
  void* some =
      mmap(nullptr, probe, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (some == MAP_FAILED) return true;
  munmap(some, probe);
  return false;
}

}  // namespace mylos
