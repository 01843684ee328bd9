// SPDX-License-Identifier: BSD-3-Clause
// MpiReduceOps: the MPI type of every DType and the MPI operation of every reduction.
#pragma once

#include <mpi.h>

#include "backends/comm_mpi/mpi_handles.hpp"
#include "core/communicator.hpp"

namespace mylos::comm_mpi {

/// The MPI type in which elements of `dtype` are sent; bf16 and fp16 are sent as 16-bit integers.
MPI_Datatype mpi_type(DType dtype);

/// Adds the reductions that MPI lacks. Elements of bf16 and fp16 are combined pairwise in fp32. The maximum
/// and the minimum of floats do not depend on the order of their arguments: a NaN wins, and +0 is above -0.
/// With MPI_MAX, whether a NaN wins depends on the order of the arguments, so ranks may obtain different
/// results.
class MpiReduceOps {
 public:
  MpiReduceOps();

  /// The operation for elements of `dtype`; throws ExitCode::internal if they cannot be reduced.
  MPI_Op get(DType dtype, ReduceOp op) const;

 private:
  MpiOp bf16_sum_;
  MpiOp bf16_max_;
  MpiOp bf16_min_;
  MpiOp fp16_sum_;
  MpiOp fp16_max_;
  MpiOp fp16_min_;
  MpiOp fp32_max_;
  MpiOp fp32_min_;
};

}  // namespace mylos::comm_mpi
