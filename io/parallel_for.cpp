// SPDX-License-Identifier: BSD-3-Clause
#include "io/parallel_for.hpp"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>
#include <vector>

namespace mylos {

void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  const auto take = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::future<void>> others;  // whose destructors wait for their threads
  const std::size_t helpers = std::min(count, static_cast<std::size_t>(threads));
  try {
    for (std::size_t i = 1; i < helpers; ++i) others.push_back(std::async(std::launch::async, take));
  } catch (const std::system_error&) {  // no more threads may be started, so the others do all the work
  }
  take();
  for (std::future<void>& other : others) other.get();
}

}  // namespace mylos
