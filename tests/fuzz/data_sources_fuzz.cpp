// SPDX-License-Identifier: BSD-3-Clause
// The data sources of a deck: any text is either a list of sources or refused as wrong usage.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "io/tokens/data_sources.hpp"
#include "io/tokens/interleaving.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mylos;
  try {
    std::vector<std::int64_t> weights;
    for (const DataSource& source : parse_sources({reinterpret_cast<const char*>(data), size})) {
      if (source.patterns.empty()) std::abort();
      for (const DataPattern& pattern : source.patterns) {
        if (pattern.glob.empty()) std::abort();
      }
      weights.push_back(source.weight);
    }
    const auto sum = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
    if (weights.size() > most_sources || sum > most_weight_units) std::abort();
    if (sum > 1000) return 0;
    const Interleaving order(weights);
    for (std::int64_t i = 0; i < sum; ++i) {
      if (order.at(i).index >= weights[order.at(i).source]) std::abort();
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage) std::abort();
  }
  return 0;
}
