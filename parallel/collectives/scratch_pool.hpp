// SPDX-License-Identifier: BSD-3-Clause
// ScratchPool: host memory that operations borrow and give back, so that repeated steps allocate nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "core/memory/memory_charge.hpp"

namespace mylos {

/// Decides, by size alone, which free block a pool lends.
class ScratchSizes {
 public:
  struct Lent {
    std::size_t capacity = 0;
    bool is_new = false;
    /// Size of the free block that the new one replaces; 0 if it replaces none.
    std::size_t replaced = 0;
  };
  /// Lends the smallest free block that is large enough. If there is none, a new block replaces the largest
  /// free one, so the pool never has more blocks than the most that were lent at once.
  Lent take(std::size_t bytes);
  void give_back(std::size_t capacity) { free_.insert(capacity); }
  /// Bytes of all blocks, lent or not.
  std::size_t allocated() const { return allocated_; }

 private:
  std::multiset<std::size_t> free_;
  std::size_t allocated_ = 0;
};

/// Thread-safe. A block returns when its `Lease` is destroyed; the pool must outlive all `Lease` objects.
class ScratchPool {
 public:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
    MemoryCharge charge;
  };

  class Lease {
   public:
    Lease() = default;
    Lease(ScratchPool& pool, Block block) : pool_(&pool), block_(std::move(block)) {}
    Lease(Lease&& other) noexcept = default;
    Lease& operator=(Lease&& other) = delete;
    ~Lease() {
      if (block_.memory) pool_->give_back(std::move(block_));
    }
    std::byte* data() const { return block_.memory.get(); }

   private:
    ScratchPool* pool_ = nullptr;
    Block block_;
  };

  /// Charges its blocks to `ledger` (null: to no ledger) as communication.
  explicit ScratchPool(MemoryLedger* ledger) : ledger_(ledger) {}

  /// Lends at least `bytes`, not initialised.
  Lease take(std::size_t bytes);

 private:
  void give_back(Block block);

  MemoryLedger* ledger_;
  std::mutex mutex_;
  ScratchSizes sizes_;
  std::vector<Block> free_;
};

}  // namespace mylos
