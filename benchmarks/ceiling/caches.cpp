// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/ceiling/caches.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "core/base/processors.hpp"

namespace mylos {

namespace {

/// The first word of a file, or "".
std::string word_of(const std::string& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

/// Bytes of the last-level caches of all cores that the calling thread may run on; a cache that several cores
/// share counts once.
std::size_t last_level_cache_bytes() {
  constexpr std::size_t usual = std::size_t{64} << 20U;  // if the system does not report sizes
  std::map<std::string, std::size_t> caches;             // by the list of cores that share it
  for (const int cpu : own_processors()) {
    std::string last;
    std::string last_level;
    for (int index = 0;; ++index) {
      const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/cache/index{}/", cpu, index);
      const std::string level = word_of(folder + "level");
      if (level.empty()) break;
      if (level > last_level) {
        last_level = level;
        last = folder;
      }
    }
    const std::string size = last.empty() ? "" : word_of(last + "size");  // "32768K"
    if (size.empty()) return usual;
    caches[word_of(last + "shared_cpu_list")] = std::stoul(size) << 10U;
  }
  return std::accumulate(caches.begin(), caches.end(), std::size_t{0},
                         [](std::size_t sum, const auto& cache) { return sum + cache.second; });
}

}  // namespace

std::size_t out_of_cache_bytes() {
  static const std::size_t caches = last_level_cache_bytes();
  return 4 * caches;
}

std::size_t out_of_cache_copies(double bytes) {
  return static_cast<std::size_t>(
      std::max(1.0, std::ceil(static_cast<double>(out_of_cache_bytes()) / bytes)));
}

}  // namespace mylos
