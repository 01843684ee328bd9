// SPDX-License-Identifier: BSD-3-Clause
// Agreement of the ranks of a communicator: an error on one rank is thrown by all ranks. What the ranks know
// of each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <mpi.h>

namespace mylos {

/// Runs `work` on this rank. If it throws on any rank, all ranks throw AgreedError with the error of the
/// lowest such rank. The message names that rank unless all ranks failed. Collective. With MPI_COMM_NULL,
/// `work` runs in this process alone, and its error is thrown as an Error.
void run_collectively(MPI_Comm comm, const std::function<void()>& work);

/// Every rank's values on rank 0, in rank order; empty on the other ranks. With MPI_COMM_NULL, this process's
/// values.
std::vector<std::vector<std::int64_t>> gather_to_root(MPI_Comm comm, const std::vector<std::int64_t>& values);

/// Returns every rank's text, in rank order. Collective over `ranks`.
std::vector<std::string> gather_texts(MPI_Comm ranks, std::string text);

/// Replaces `values` on every rank by rank 0's.
void broadcast_from_root(MPI_Comm comm, std::vector<std::int64_t>& values);

}  // namespace mylos
