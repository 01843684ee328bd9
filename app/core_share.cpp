// SPDX-License-Identifier: BSD-3-Clause
#include "app/core_share.hpp"

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace mylos {

cpu_set_t even_share(const cpu_set_t& cores, int index, int count) {
  require(index >= 0 && index < count, "a part that there is");
  const int available = CPU_COUNT(&cores);
  if (available < count) return cores;
  const int first = available * index / count;
  const int end = available * (index + 1) / count;
  cpu_set_t share;
  CPU_ZERO(&share);
  int place = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores)) continue;
    if (place >= first && place < end) CPU_SET(core, &share);
    ++place;
  }
  return share;
}

std::string own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  const auto has = [&](int core) { return core < CPU_SETSIZE && CPU_ISSET(core, &cores); };
  std::string text;
  for (int first = 0; first < CPU_SETSIZE; ++first) {
    if (!has(first)) continue;
    int last = first;
    while (has(last + 1)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last > first) text += fmt::format("-{}", last);
    first = last;
  }
  return text;
}

}  // namespace mylos
