// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/node.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <sched.h>
#include <string>
#include <unistd.h>

namespace mylos {

namespace {

/// What a rank tells the others of where it runs.
struct Address {
  std::array<char, 64> kernel{};     // drawn at boot
  std::array<char, 64> processes{};  // the name space of process ids, by which memory is found
  cpu_set_t cores{};

  bool operator==(const Address& other) const {
    return kernel == other.kernel && processes == other.processes;
  }
};

Address own_address() {
  Address own;
  std::ifstream("/proc/sys/kernel/random/boot_id").read(own.kernel.data(), own.kernel.size() - 1);
  const ssize_t length = readlink("/proc/self/ns/pid", own.processes.data(), own.processes.size() - 1);
  if (own.kernel[0] == '\0' || length <= 0) fail(ExitCode::internal, "comm_shm needs /proc");
  sched_getaffinity(0, sizeof own.cores, &own.cores);
  return own;
}

}  // namespace

Node find_node(Communicator& bootstrap, int ranks_per_node) {
  Address own = own_address();
  const auto size = static_cast<std::int64_t>(sizeof own);
  std::vector<Address> all(static_cast<std::size_t>(bootstrap.size()));
  bootstrap
      .all_gather({}, TensorRef(&own, DType::uint8, {size}),
                  TensorRef(all.data(), DType::uint8, {size * bootstrap.size()}))
      .host_wait();
  Node node;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    const Address& address = all[static_cast<std::size_t>(rank)];
    if (!(address == own)) continue;
    node.ranks.push_back(rank);
    CPU_OR(&cores, &cores, &address.cores);
  }
  node.core_for_each = CPU_COUNT(&cores) >= static_cast<int>(node.ranks.size());
  if (ranks_per_node == 0) return node;
  const auto own_place = std::ranges::find(node.ranks, bootstrap.rank()) - node.ranks.begin();
  const auto first = node.ranks.begin() + own_place / ranks_per_node * ranks_per_node;
  node.ranks.assign(first, first + std::min<std::ptrdiff_t>(ranks_per_node, node.ranks.end() - first));
  return node;
}

}  // namespace mylos
