// SPDX-License-Identifier: BSD-3-Clause
// The processors that a process may use, and their division among ranks that may use the same ones.
#pragma once

#include <string>
#include <vector>

#include <mpi.h>

namespace mylos {

/// Logical processors, ascending in the system's numbering. Their number is not limited.
using Processors = std::vector<int>;

/// The processors that the calling thread may use; throws ExitCode::internal if they cannot be determined.
Processors own_processors();

/// Binds the calling thread. Returns 0 or the system's error number.
int bind_thread(const Processors& processors);

/// Share `index` of `count` even shares. Shares are contiguous in the system's numbering, which may put the
/// second hardware threads of all cores after the first. Returns all processors if there are fewer than
/// `count`.
Processors even_share(const Processors& processors, int index, int count);

/// In the form "0-3,8".
std::string text_of(const Processors& processors);

/// Every rank's text, in rank order. Collective over `ranks`.
std::vector<std::string> gather_texts(MPI_Comm ranks, std::string text);

}  // namespace mylos
