// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/step/step_ceiling.hpp"

#include <cmath>
#include <limits>

#include <mpi.h>

#include "benchmarks/ceiling/gemm.hpp"

namespace mylos {

std::optional<double> measure_step_ceiling(const RunConfig& config) {
  const GemmShapes shapes{.rows = config.train.micro_batch * config.train.seq_len,
                          .width = config.model.width,
                          .layers = config.model.layers,
                          .padded_vocab = config.model.padded_vocab(),
                          .dtype = config.train.dtype};
  const auto own = measure_gemm_ceiling(shapes, [] { MPI_Barrier(MPI_COMM_WORLD); });
  double sum = own.value_or(std::numeric_limits<double>::quiet_NaN());
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return std::isfinite(sum) ? std::optional(sum / ranks) : std::nullopt;
}

}  // namespace mylos
