// SPDX-License-Identifier: BSD-3-Clause
// CostCurve: what something costs as a function of its size, from a few measured points.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>

#include "core/base/error.hpp"

namespace mylos {

/// Constant up to the first point, linear between points, and extrapolated beyond the last one; in proportion
/// to the size beyond a single point. The cost has any unit, the size is in bytes.
class CostCurve {
 public:
  void add(double bytes, double cost) { points_[bytes] = cost; }
  /// Makes larger sizes cost no less than smaller ones: noise may make them appear faster.
  void rise() {
    double least = 0.0;
    for (auto& [bytes, cost] : points_) cost = least = std::max(least, cost);
  }
  const std::map<double, double>& points() const { return points_; }

  /// There must be a point.
  double operator()(double bytes) const {
    require(!points_.empty(), "a curve has points");
    const auto first = points_.begin();
    if (bytes <= first->first) return first->second;
    if (points_.size() == 1) return first->second * bytes / first->first;
    auto high = points_.lower_bound(bytes);
    if (high == points_.end()) --high;
    const auto low = std::prev(high);
    const double slope = (high->second - low->second) / (high->first - low->first);
    return low->second + slope * (bytes - low->first);
  }

 private:
  std::map<double, double> points_;
};

}  // namespace mylos
