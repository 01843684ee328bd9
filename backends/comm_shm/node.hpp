// SPDX-License-Identifier: BSD-3-Clause
// Node: which ranks can share memory, and whether there is a core for each.
#pragma once

#include <string>
#include <vector>

#include "backends/comm_shm/shared_memory.hpp"
#include "core/communication/communicator.hpp"

namespace mylos::comm_shm {

struct Node {
  std::vector<int> ranks;  ///< ranks of the bootstrap, ascending, including this rank
  bool core_for_each = false;
};

/// The node of this rank: the ranks that run on the same kernel and see each other's processes, further
/// divided into groups of at most `ranks_per_node` unless that is 0. Collective over the bootstrap.
Node find_node(Communicator& bootstrap, int ranks_per_node);

/// Why some rank of a node cannot share memory with the others, for example because each rank has its own
/// user namespace; "" if all ranks can. All ranks get the same text. Collective over the bootstrap.
std::string sharing_problem(Communicator& bootstrap, SharedMemory& memory);

}  // namespace mylos::comm_shm
