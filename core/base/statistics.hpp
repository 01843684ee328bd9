// SPDX-License-Identifier: BSD-3-Clause
// Statistics of samples: quantile and median.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/base/error.hpp"

namespace mylos {

/// Returns the value below which a fraction `q` of `samples` lies, interpolated linearly between the two
/// nearest samples (Hyndman and Fan, "Sample quantiles in statistical packages", 1996, definition 7). There
/// must be at least one sample and no NaN; q is in [0, 1].
inline double quantile(std::vector<double> samples, double q) {
  require(!samples.empty() && q >= 0.0 && q <= 1.0, "a quantile of samples, from 0 to 1");
  const double place = q * static_cast<double>(samples.size() - 1);
  const auto below = samples.begin() + static_cast<std::ptrdiff_t>(place);
  std::nth_element(samples.begin(), below, samples.end());
  const double low = *below;
  if (below + 1 == samples.end()) return low;
  return std::lerp(low, *std::min_element(below + 1, samples.end()), place - std::floor(place));
}

/// Returns the median; for an even number of samples, the mean of the two in the middle.
inline double median(std::vector<double> samples) {
  return quantile(std::move(samples), 0.5);
}

}  // namespace mylos
