// SPDX-License-Identifier: BSD-3-Clause
// The processors that a process may use, and their division among ranks that nobody bound.
#pragma once

#include <string>
#include <vector>

#include <mpi.h>

namespace mylos {

/// Logical processors, ascending in the system's numbering. There may be any number of them.
using Processors = std::vector<int>;

/// Those that the calling thread may use; throws ExitCode::internal if the system does not tell.
Processors own_processors();

/// Binds the calling thread. Returns 0 or the system's error number.
int bind_thread(const Processors& processors);

/// Part `index` of `count` even parts, contiguous in the system's numbering, which may put the second
/// hardware threads of all cores behind the first; all of them if there are fewer processors than parts.
Processors even_share(const Processors& processors, int index, int count);

/// As "0-3,8".
std::string text_of(const Processors& processors);

/// Every rank's text, in the order of the ranks. Collective over `ranks`.
std::vector<std::string> gather_texts(MPI_Comm ranks, std::string text);

}  // namespace mylos
