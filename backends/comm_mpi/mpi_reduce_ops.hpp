// SPDX-License-Identifier: BSD-3-Clause
// MpiReduceOps: the MPI type of every DType and the MPI operation of every reduction.
#pragma once

#include <mpi.h>

#include "backends/comm_mpi/mpi_handles.hpp"
#include "core/communicator.hpp"

namespace mylos::comm_mpi {

/// The type that moves elements of `dtype`.
MPI_Datatype mpi_type(DType dtype);

/// Reductions that MPI lacks: bf16 and fp16, combined pairwise in fp32, and a maximum and minimum of floats
/// that do not depend on the order of their arguments. A NaN wins (with MPI_MAX the rank decides), and +0 is
/// above -0.
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
