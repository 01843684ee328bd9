// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/shared_memory.hpp"

namespace mylos::comm_shm {

std::vector<SharedBytes> share(SharedMemory& memory, const GatherNumbers& gather,
                               std::span<const int> members, int own, std::size_t bytes) {
  const SharedMemory::Offer offer = memory.offer(bytes);
  const std::vector<std::int64_t> keys = gather(offer.key);
  std::vector<SharedBytes> parts;
  for (const int member : members) {
    const bool is_own = static_cast<int>(parts.size()) == own;
    parts.push_back(is_own ? offer.memory : memory.map(keys[static_cast<std::size_t>(member)], bytes));
  }
  gather(0);  // keeps the offer open until every member has mapped it
  return parts;
}

}  // namespace mylos::comm_shm
