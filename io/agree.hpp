// SPDX-License-Identifier: BSD-3-Clause
// Agreement of the ranks of the I/O communicator: what one rank finds wrong, all ranks throw.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <mpi.h>

namespace mylos {

/// Runs `work` on this rank. If it throws on any rank, all ranks throw AgreedError, the error of the lowest
/// such rank, which the message names if other ranks had none. Collective; with MPI_COMM_NULL `work` runs
/// alone.
void agreed(MPI_Comm comm, const std::function<void()>& work);

/// Every rank's values on rank 0, in the order of the ranks; nothing on the others.
std::vector<std::vector<std::int64_t>> gathered_at_root(MPI_Comm comm,
                                                        const std::vector<std::int64_t>& values);

/// Rank 0's values on every rank.
void agreed_with_root(MPI_Comm comm, std::vector<std::int64_t>& values);

}  // namespace mylos
