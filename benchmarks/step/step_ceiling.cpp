// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/step/step_ceiling.hpp"

#include <cmath>
#include <limits>

#include <mpi.h>

#include "benchmarks/ceiling/gemm.hpp"

namespace mylos {

namespace {

std::optional<double> mean_over_ranks(std::optional<double> own) {
  double sum = own.value_or(std::numeric_limits<double>::quiet_NaN());
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return std::isfinite(sum) ? std::optional(sum / ranks) : std::nullopt;
}

}  // namespace

StepCeiling measure_step_ceiling(const RunConfig& config) {
  const GemmShapes shapes{.rows = config.train.micro_batch * config.train.seq_len,
                          .width = config.model.width,
                          .inner = config.model.inner_width(),
                          .layers = config.model.layers,
                          .padded_vocab = config.model.padded_vocab(),
                          .dtype = config.train.dtype};
  const auto meet = [] { MPI_Barrier(MPI_COMM_WORLD); };
  StepCeiling ceiling;
  ceiling.gemm = mean_over_ranks(measure_gemm_ceiling(shapes, meet));
  ceiling.registers = measure_register_rate(config.train.dtype, meet);
  const auto rate =
      mean_over_ranks(ceiling.registers ? std::optional(ceiling.registers->gflops) : std::nullopt);
  if (rate) ceiling.registers->gflops = *rate;
  return ceiling;
}

}  // namespace mylos
