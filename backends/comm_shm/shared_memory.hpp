// SPDX-License-Identifier: BSD-3-Clause
// SharedMemory: memory of one rank that the other ranks of its node can map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace mylos::comm_shm {

/// Memory that is freed when its last owner is destroyed.
using SharedBytes = std::shared_ptr<std::byte>;

class SharedMemory {
 public:
  /// Memory of this rank. Other ranks can map it by `key` while `open` lives.
  struct Offer {
    SharedBytes memory;
    std::int64_t key;
    std::shared_ptr<void> open;
  };

  virtual ~SharedMemory() = default;
  /// `bytes` of zeros, aligned to pages; throws ExitCode::internal if there is no memory.
  virtual Offer offer(std::size_t bytes) = 0;
  /// The memory that another rank offers under `key`; throws ExitCode::internal if it cannot be mapped.
  virtual SharedBytes map(std::int64_t key, std::size_t bytes) = 0;
};

/// Gathers one number from every rank; collective.
using GatherNumbers = std::function<std::vector<std::int64_t>(std::int64_t own)>;

/// `bytes` bytes of shared memory from each of `members`, which are ranks of the group of `gather`. `own` is
/// the index of this rank in `members`. Collective over that group; its ranks may pass different members.
std::vector<SharedBytes> share(SharedMemory& memory, const GatherNumbers& gather,
                               std::span<const int> members, int own, std::size_t bytes);

}  // namespace mylos::comm_shm
