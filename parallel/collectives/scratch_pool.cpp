// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/scratch_pool.hpp"

#include <algorithm>
#include <iterator>

namespace mylos {

ScratchSizes::Lent ScratchSizes::take(std::size_t bytes) {
  if (const auto fitting = free_.lower_bound(bytes); fitting != free_.end()) {
    const Lent lent{.capacity = *fitting};
    free_.erase(fitting);
    return lent;
  }
  Lent lent{.capacity = bytes, .is_new = true};
  if (!free_.empty()) {
    lent.replaced = *free_.rbegin();
    free_.erase(std::prev(free_.end()));
  }
  allocated_ += bytes - lent.replaced;
  return lent;
}

ScratchPool::Lease ScratchPool::take(std::size_t bytes) {
  if (bytes == 0) return {};
  const std::lock_guard lock(mutex_);
  const ScratchSizes::Lent lent = sizes_.take(bytes);
  const auto remove = [&](std::size_t capacity) {
    const auto found = std::ranges::find(free_, capacity, &Block::capacity);
    Block block = std::move(*found);
    free_.erase(found);
    return block;
  };
  if (!lent.is_new) return {*this, remove(lent.capacity)};
  if (lent.replaced > 0) remove(lent.replaced);
  return {*this,
          {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes,
           MemoryCharge(ledger_, MemoryCategory::communication, bytes)}};
}

void ScratchPool::give_back(Block block) {
  const std::lock_guard lock(mutex_);
  sizes_.give_back(block.capacity);
  free_.push_back(std::move(block));
}

}  // namespace mylos
