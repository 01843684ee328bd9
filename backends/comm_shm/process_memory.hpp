// SPDX-License-Identifier: BSD-3-Clause
// ProcessMemory: memory shared between processes of one user on one machine.
#pragma once

#include "backends/comm_shm/shared_memory.hpp"

namespace mylos::comm_shm {

/// Anonymous files (memfd_create), which other processes open through /proc while the owner holds them open.
/// They have no name in any file system, so nothing is left behind, however a process ends, and the size of
/// /dev/shm does not limit them.
class ProcessMemory final : public SharedMemory {
 public:
  Offer offer(std::size_t bytes) override;
  SharedBytes map(std::int64_t key, std::size_t bytes) override;
};

}  // namespace mylos::comm_shm
