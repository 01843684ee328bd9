// SPDX-License-Identifier: BSD-3-Clause
// choose_algorithms: resolves comm.algorithm = auto on this machine.
#pragma once

#include <vector>

#include "core/communication/communicator.hpp"
#include "parallel/collectives/algorithm_choice.hpp"
#include "parallel/collectives/cost_curve.hpp"

namespace mylos {

/// Nanoseconds of the steps that collectives are made of, and of the backend's own collectives.
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
