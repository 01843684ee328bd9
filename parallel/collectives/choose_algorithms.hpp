// SPDX-License-Identifier: BSD-3-Clause
// choose_algorithms: resolves comm.algorithm = auto on this machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/communicator.hpp"
#include "parallel/collectives/algorithm_choice.hpp"

namespace mylos {

/// Nanoseconds by bytes: constant up to the first point, then straight lines between the points, the last
/// line extended.
class CostCurve {
 public:
  /// Add at least two points, in order of `bytes`.
  void add(std::int64_t bytes, double nanoseconds) {
    // Noise may make the measured time of a larger size smaller.
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
  CostCurve local;  ///< a reduction or a copy: both move two cache lines in and one out
  /// By payload, one curve for each of scheduled_operations; empty if the backend has no native collectives.
  std::vector<CostCurve> native;
};

/// Measures messages between neighbours, the local reduction and each native collective at a few sizes (in
/// less than 1 s on a few ranks), and chooses by these costs. Native collectives are left out if they throw
/// ExitCode::usage, as over a simulated link. Collective; the result is the same on all ranks. `world` takes
/// host buffers.
AlgorithmChoice choose_algorithms(Communicator& world);

/// Simulates the rounds of every algorithm's collectives and takes the fastest algorithm by payload. If the
/// gain is below 10 %, keeps the algorithm of the next smaller payload; for the smallest payload, keeps
/// native, or naive if there are no native collectives. Collective, with the same costs on all ranks.
AlgorithmChoice choose_algorithms(Communicator& world, const CollectiveCosts& costs);

}  // namespace mylos
