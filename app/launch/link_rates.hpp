// SPDX-License-Identifier: BSD-3-Clause
// The bandwidths with which the partitioner reckons, if the deck does not say.
#pragma once

#include <string>

#include "app/deck/command_line.hpp"
#include "app/deck/run_config.hpp"
#include "app/launch/mpi_runtime.hpp"

namespace mylos {

/// Returns the job with the bandwidths that the deck leaves open, if its stages are to be chosen by them:
/// those of the run that is continued or else, between the first ranks of a node and of two nodes, those of
/// MPI's messages of 4 MiB between hosts. The same on all ranks. Collective.
JobSize with_link_rates(const MpiRuntime& mpi, const CommandLine& line, const std::string& deck_text);

}  // namespace mylos
