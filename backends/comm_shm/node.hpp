// SPDX-License-Identifier: BSD-3-Clause
// Node: which ranks can share memory, and whether they have a core each.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "backends/comm_shm/shared_memory.hpp"
#include "core/communicator.hpp"

namespace mylos::comm_shm {

struct Node {
  std::vector<int> ranks;  ///< of the bootstrap, ascending; this one among them
  bool core_for_each = false;
};

/// How many cores stand in any of these lists, each like "0-3,8".
int count_cores(std::span<const std::string> lists);

/// The node of this rank: those that run on the same kernel and see each other's processes, further divided
/// into groups of `ranks_per_node` where that is not 0. Collective over the bootstrap.
Node find_node(Communicator& bootstrap, int ranks_per_node);

/// Why some ranks of a node cannot open what others share, as where each has a user namespace of its own; ""
/// if all can. The same on all ranks. Collective over the bootstrap.
std::string sharing_problem(Communicator& bootstrap, SharedMemory& memory);

}  // namespace mylos::comm_shm
