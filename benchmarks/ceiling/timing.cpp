// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/ceiling/timing.hpp"

#include <utility>
#include <vector>

#include "core/base/clock.hpp"
#include "core/base/statistics.hpp"

namespace mylos {

double median_seconds(double budget, int calls, const std::function<void(int)>& call) {
  constexpr int enough = 100;
  std::vector<double> seconds;
  const auto begin = Clock::now();
  for (int i = 0; i < calls || (i < enough && seconds_since(begin) < budget); ++i) {
    const auto start = Clock::now();
    call(i);
    seconds.push_back(seconds_since(start));
  }
  return median(std::move(seconds));
}

}  // namespace mylos
