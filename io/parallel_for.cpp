// SPDX-License-Identifier: BSD-3-Clause
#include "io/parallel_for.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace mylos {

void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto take = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  };
  std::vector<std::jthread> others;
  const std::size_t helpers = std::min(count, static_cast<std::size_t>(threads));
  for (std::size_t i = 1; i < helpers; ++i) others.emplace_back(take);
  take();
  others.clear();  // joins them
  if (error) std::rethrow_exception(error);
}

}  // namespace mylos
