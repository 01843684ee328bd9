// SPDX-License-Identifier: BSD-3-Clause
// The norm-wise relative error by which tests compare tensors.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

namespace mylos {

/// ‖a − b‖₂ / ‖b‖₂ in double; b is the truth. Zero if both are zero, infinite if only b is zero or the sizes
/// differ, NaN if either holds a NaN: compare with `<=`, which NaN fails.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double difference = 0.0;
  double truth = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    truth += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / truth);
}

}  // namespace mylos
