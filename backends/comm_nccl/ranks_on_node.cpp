// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_nccl/ranks_on_node.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <vector>

#include "core/base/digest.hpp"

namespace mylos::comm_nccl {

std::string own_node() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) fail(ExitCode::internal, "comm_nccl needs /proc");
  return boot;
}

int ranks_on_node(Communicator& ranks, const std::string& node) {
  auto own = static_cast<std::int64_t>(digest_of(node).low);
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather({&own, DType::int64, {1}}, {all.data(), DType::int64, {std::ssize(all)}}).host_wait();
  return static_cast<int>(std::ranges::count(all, own));
}

}  // namespace mylos::comm_nccl
