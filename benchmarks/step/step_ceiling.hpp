// SPDX-License-Identifier: BSD-3-Clause
// The GEMM ceiling of a deck, while every rank computes.
#pragma once

#include <optional>

#include "app/run_config.hpp"

namespace mylos {

/// GFLOP/s of one rank, the mean over the ranks: the products of a micro-batch of `config`
/// (measure_gemm_ceiling) with the threads that the session's backend has set, on all ranks at the same time.
/// Nothing if a rank cannot measure it. Collective over MPI_COMM_WORLD.
std::optional<double> measure_step_ceiling(const RunConfig& config);

}  // namespace mylos
