// SPDX-License-Identifier: BSD-3-Clause
// choose_algorithms: resolves comm.algorithm = auto on this machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/communication/communicator.hpp"
#include "parallel/collectives/algorithm_choice.hpp"

namespace mylos {

/// Nanoseconds as a function of bytes: constant up to the first point, linear between points, and
/// extrapolated beyond the last point.
class CostCurve {
 public:
  /// Must be called at least twice, in ascending order of `bytes`.
  void add(std::int64_t bytes, double nanoseconds) {
    // Noise may make a larger size appear faster than a smaller one.
    if (!points_.empty()) nanoseconds = std::max(nanoseconds, points_.back().nanoseconds);
    points_.push_back({static_cast<double>(bytes), nanoseconds});
  }
  double operator()(std::int64_t bytes) const {
    const auto n = static_cast<double>(bytes);
    if (n <= points_[0].bytes) return points_[0].nanoseconds;
    std::size_t i = 1;
    while (i + 1 < points_.size() && n > points_[i].bytes) ++i;
    const Point& low = points_[i - 1];
    const Point& high = points_[i];
    return low.nanoseconds +
           (n - low.bytes) * (high.nanoseconds - low.nanoseconds) / (high.bytes - low.bytes);
  }

 private:
  struct Point {
    double bytes;
    double nanoseconds;
  };
  std::vector<Point> points_;
};

/// The cost of the steps that collectives are made of, and of the backend's own collectives.
struct CollectiveCosts {
  CostCurve message;
  CostCurve local;  ///< a reduction; a copy is taken to cost the same
  /// By payload, one curve for each of scheduled_operations; empty if the backend has no native collectives.
  std::vector<CostCurve> native;
};

/// Measures messages between neighbours, the local reduction and each native collective at a few sizes, and
/// chooses by the measured costs. Native collectives are left out if they throw ExitCode::usage, as over a
/// simulated link. With one rank, nothing is measured and the choice is native. Collective; the result is the
/// same on all ranks. `world` takes host buffers.
AlgorithmChoice choose_algorithms(Communicator& world);

/// Simulates the rounds of every algorithm and takes the fastest algorithm for each collective and payload.
/// If the fastest saves 10 % or less, keeps the algorithm of the next smaller payload; at the smallest
/// payload, keeps native, or naive if there are no native collectives. Collective, with the same costs on all
/// ranks.
AlgorithmChoice choose_algorithms(Communicator& world, const CollectiveCosts& costs);

}  // namespace mylos
