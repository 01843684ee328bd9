// SPDX-License-Identifier: BSD-3-Clause
// The ceilings of a deck's matrix products, measured while every rank computes.
#pragma once

#include <optional>

#include "app/deck/run_config.hpp"
#include "benchmarks/ceiling/register_rate.hpp"

namespace mylos {

/// GFLOP/s of one rank: means over the ranks; empty if a rank cannot measure the rate.
struct StepCeiling {
  std::optional<double> gemm;             ///< of the products of a micro-batch (measure_gemm_ceiling)
  std::optional<RegisterRate> registers;  ///< of the arithmetic units (measure_register_rate)
};

/// Measures with the threads that the session's backend has set, on all ranks at the same time. Collective
/// over MPI_COMM_WORLD.
StepCeiling measure_step_ceiling(const RunConfig& config);

}  // namespace mylos
