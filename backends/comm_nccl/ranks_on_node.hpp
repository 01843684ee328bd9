// SPDX-License-Identifier: BSD-3-Clause
// ranks_on_node: how many ranks of a job run on this rank's node, as measured.
#pragma once

#include <string>

#include "core/communication/communicator.hpp"

namespace mylos::comm_nccl {

/// Identifies the running kernel, whatever container a rank is in. Throws ExitCode::internal without /proc.
std::string own_node();

/// Returns how many of `ranks` pass the same `node` as this one: launchers describe uneven nodes in their own
/// ways, or not at all. Collective; `ranks` moves host memory.
int ranks_on_node(Communicator& ranks, const std::string& node);

}  // namespace mylos::comm_nccl
