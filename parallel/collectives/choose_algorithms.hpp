// SPDX-License-Identifier: BSD-3-Clause
// choose_algorithms: what comm.algorithm = auto stands for on this machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/communicator.hpp"
#include "parallel/collectives/algorithm_choice.hpp"

namespace mylos {

/// Nanoseconds by bytes: straight lines between points, the last one going on.
class CostCurve {
 public:
  /// At least two points, in order of `bytes`.
  void add(std::int64_t bytes, double nanoseconds) {
    // Measured times may fall where noise is larger than the slope.
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

/// What collectives are made of, and what the backend's own take.
struct CollectiveCosts {
  CostCurve message;
  CostCurve local;                ///< of reducing or copying: both move two lines in and one out
  std::vector<CostCurve> native;  ///< by payload, of each of scheduled_operations; empty where there are none
};

/// Measures messages between neighbours, the local reduction and each native collective at a few sizes (below
/// 1 s on a few ranks), and chooses by them. Where the native ones end with ExitCode::usage, as over a
/// simulated link, they are left out. Collective; the same on all ranks. `world` takes host buffers.
AlgorithmChoice choose_algorithms(Communicator& world);

/// Simulates the rounds of every algorithm's collectives and takes the fastest by payload; where the
/// difference is below 10 % the algorithm of smaller payloads, the native one first. Collective, with the
/// same costs on all ranks.
AlgorithmChoice choose_algorithms(Communicator& world, const CollectiveCosts& costs);

}  // namespace mylos
