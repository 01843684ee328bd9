// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/scratch_pool.hpp"

#include <algorithm>

namespace mylos {

ScratchPool::Scratch ScratchPool::take(std::size_t bytes) {
  if (bytes == 0) return {};
  const std::lock_guard lock(mutex_);
  const auto by_capacity = [](const Block& a, const Block& b) { return a.capacity < b.capacity; };
  // The smallest that is large enough; otherwise the largest makes room for a new one, so that as many blocks
  // as were ever borrowed at once are kept.
  std::sort(free_.begin(), free_.end(), by_capacity);
  const auto fitting =
      std::find_if(free_.begin(), free_.end(), [&](const Block& block) { return block.capacity >= bytes; });
  Block block;
  if (fitting != free_.end()) {
    block = std::move(*fitting);
    free_.erase(fitting);
    return {*this, std::move(block)};
  }
  if (!free_.empty()) {
    allocated_ -= free_.back().capacity;
    free_.pop_back();
  }
  block = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes,
           MemoryCharge(ledger_, MemoryCategory::communication, bytes)};
  allocated_ += bytes;
  peak_ = std::max<std::size_t>(peak_, allocated_);
  num_allocations_ += 1;
  return {*this, std::move(block)};
}

void ScratchPool::give_back(Block block) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(block));
}

}  // namespace mylos
