// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/interleaving.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/base/error.hpp"

namespace mylos {

Interleaving::Interleaving(std::span<const std::int64_t> weights) : places_(weights.size()) {
  require(!weights.empty() && std::ranges::min(weights) > 0, "every source has a weight");
  require(weights.size() <= std::numeric_limits<std::uint16_t>::max(), "sources can be numbered");
  const std::int64_t period = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  for (std::int64_t place = 0; place < period; ++place) {
    std::size_t first = weights.size();
    std::int64_t earliest = std::numeric_limits<std::int64_t>::max();
    for (std::size_t source = 0; source < weights.size(); ++source) {
      const std::int64_t weight = weights[source];
      const auto next = std::ssize(places_[source]);
      const std::int64_t deadline = ((next + 1) * period + weight - 1) / weight;
      if (next * period / weight > place || deadline >= earliest) continue;
      first = source;
      earliest = deadline;
    }
    source_of_.push_back(static_cast<std::uint16_t>(first));
    places_[first].push_back(static_cast<std::int32_t>(place));
  }
}

Interleaving::Place Interleaving::at(std::int64_t sample) const {
  const std::size_t source = source_of_[static_cast<std::size_t>(sample % std::ssize(source_of_))];
  return {source, count(source, sample)};
}

std::int64_t Interleaving::count(std::size_t source, std::int64_t samples) const {
  const auto& places = places_[source];
  const auto period = std::ssize(source_of_);
  return samples / period * std::ssize(places) +
         (std::ranges::lower_bound(places, samples % period) - places.begin());
}

}  // namespace mylos
