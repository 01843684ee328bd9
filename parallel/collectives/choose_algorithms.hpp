// SPDX-License-Identifier: BSD-3-Clause
// choose_algorithms: what comm.algorithm = auto stands for on this machine.
#pragma once

#include <string>

#include "core/communicator.hpp"

namespace mylos {

/// Measures messages between neighbours, the native all_reduce and the local reduction at a few sizes (0.01
/// to 0.3 s), adds up what each round of each algorithm's all_reduce takes, and returns the fastest by
/// payload as AlgorithmChoice::parse reads it; where the difference is below 10 % the algorithm of smaller
/// payloads, the native one first. Where the native one ends with ExitCode::usage, as over a simulated link,
/// it is left out. Collective; the same on all ranks. `world` takes host buffers.
std::string choose_algorithms(Communicator& world);

}  // namespace mylos
