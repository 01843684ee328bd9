// SPDX-License-Identifier: BSD-3-Clause
// The MPI type of every DType and the MPI operation of every reduction.
#pragma once

#include <mpi.h>

#include "core/communication/communicator.hpp"

namespace mylos::comm_mpi {

/// The MPI type in which elements of `dtype` are sent; bf16 and fp16 are sent as 16-bit integers.
MPI_Datatype mpi_type(DType dtype);

/// Returns whether mpi_op(dtype, op) is a function of mylos, which runs on the host, and not MPI's own.
bool runs_on_host(DType dtype, ReduceOp op);

/// The operation for elements of `dtype`; throws ExitCode::internal if they cannot be reduced. Integers and
/// sums of fp32 use MPI's own operations. The other operations are made on first use and live until MPI ends.
/// Elements of bf16 and fp16 are combined pairwise in fp32. The maximum and the minimum of floats do not
/// depend on the order of their arguments: a NaN wins, and +0 is above -0. With MPI_MAX, whether a NaN wins
/// may depend on the order of the arguments, so ranks may obtain different results.
MPI_Op mpi_op(DType dtype, ReduceOp op);

}  // namespace mylos::comm_mpi
