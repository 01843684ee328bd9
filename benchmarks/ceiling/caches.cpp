// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/ceiling/caches.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <sched.h>
#include <string>

#include <fmt/format.h>

namespace mylos {

namespace {

/// The first word of a file, or "".
std::string word_of(const std::string& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

/// The last-level cache of each core of this process by the cores that share it, in bytes.
std::map<std::string, std::size_t> last_level_caches() {
  cpu_set_t affinity;
  CPU_ZERO(&affinity);
  sched_getaffinity(0, sizeof affinity, &affinity);
  std::map<std::string, std::size_t> caches;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &affinity)) continue;
    std::string last;
    std::string level = "0";
    for (int index = 0;; ++index) {
      const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/cache/index{}/", cpu, index);
      const std::string own_level = word_of(folder + "level");
      if (own_level.empty()) break;
      if (own_level > level) {
        level = own_level;
        last = folder;
      }
    }
    if (!last.empty())
      caches[word_of(last + "shared_cpu_list")] = std::stoul(word_of(last + "size")) << 10U;  // "32768K"
  }
  return caches;
}

}  // namespace

std::size_t out_of_cache_bytes() {
  constexpr std::size_t usual = std::size_t{64} << 20U;  // where the system does not tell
  const auto caches = last_level_caches();
  return 4 * (caches.empty()
                  ? usual
                  : std::accumulate(caches.begin(), caches.end(), std::size_t{0},
                                    [](std::size_t sum, const auto& cache) { return sum + cache.second; }));
}

std::size_t out_of_cache_copies(double bytes) {
  return static_cast<std::size_t>(
      std::max(1.0, std::ceil(static_cast<double>(out_of_cache_bytes()) / bytes)));
}

}  // namespace mylos
