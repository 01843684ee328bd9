// SPDX-License-Identifier: BSD-3-Clause
// SharedMemory: where ranks of one node get memory that the others can map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace mylos::comm_shm {

/// Memory that is unmapped when its last owner goes.
using SharedBytes = std::shared_ptr<std::byte>;

class SharedMemory {
 public:
  /// Memory of this rank. Others can map it by `key` while `open` lives.
  struct Offer {
    SharedBytes memory;
    std::int64_t key;
    std::shared_ptr<void> open;
  };

  virtual ~SharedMemory() = default;
  /// `bytes` of zeros, aligned to pages; throws ExitCode::internal where there is no memory.
  virtual Offer offer(std::size_t bytes) = 0;
  /// The memory that another rank offers under `key`.
  virtual SharedBytes map(std::int64_t key, std::size_t bytes) = 0;
};

/// Gives one number of every rank; collective.
using GatherNumbers = std::function<std::vector<std::int64_t>(std::int64_t own)>;

/// `bytes` of each of the `members`, ranks of those that `gather` joins, with `own` the place of this one
/// among them. Collective over all of these, who may have different members.
std::vector<SharedBytes> share(SharedMemory& memory, const GatherNumbers& gather,
                               std::span<const int> members, int own, std::size_t bytes);

}  // namespace mylos::comm_shm
