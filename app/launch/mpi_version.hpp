// SPDX-License-Identifier: BSD-3-Clause
// The version of the MPI library.
#pragma once

#include <string>

namespace mylos {

/// Returns the first line of what the MPI library says of itself; this needs no initialised MPI.
std::string mpi_version();

}  // namespace mylos
