// SPDX-License-Identifier: BSD-3-Clause
// ScratchPool: host memory that operations borrow and give back, so that repeated steps allocate nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "core/memory/memory_charge.hpp"

namespace mylos {

/// Which of the blocks that were given back a pool lends, by their sizes alone.
class ScratchSizes {
 public:
  struct Lent {
    std::size_t capacity = 0;
    bool is_new = false;
    std::size_t replaced = 0;  ///< the free block that makes room for a new one; 0 if there is none
  };
  /// The smallest that is large enough; otherwise the largest makes room for a new one, so that as many
  /// blocks as were ever borrowed at once are kept.
  Lent take(std::size_t bytes);
  void give_back(std::size_t capacity) { free_.insert(capacity); }
  /// Of all blocks, lent or not.
  std::size_t allocated() const { return allocated_; }

 private:
  std::multiset<std::size_t> free_;
  std::size_t allocated_ = 0;
};

/// Thread-safe. Blocks go back when their `Scratch` is destroyed; the pool must outlive them.
class ScratchPool {
 public:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
    MemoryCharge charge;
  };

  class Scratch {
   public:
    Scratch() = default;
    Scratch(ScratchPool& pool, Block block) : pool_(&pool), block_(std::move(block)) {}
    Scratch(Scratch&& other) noexcept = default;
    Scratch& operator=(Scratch&& other) = delete;
    ~Scratch() {
      if (block_.memory) pool_->give_back(std::move(block_));
    }
    std::byte* data() const { return block_.memory.get(); }

   private:
    ScratchPool* pool_ = nullptr;
    Block block_;
  };

  /// Charges its blocks to `ledger` (null: to none) as communication.
  explicit ScratchPool(MemoryLedger* ledger) : ledger_(ledger) {}

  /// At least `bytes`, not initialised.
  Scratch take(std::size_t bytes);
  /// The most that was ever allocated.
  std::size_t peak_bytes() const { return peak_.load(); }
  std::size_t num_allocations() const { return num_allocations_.load(); }

 private:
  void give_back(Block block);

  MemoryLedger* ledger_;
  std::mutex mutex_;
  ScratchSizes sizes_;
  std::vector<Block> free_;
  std::atomic<std::size_t> peak_{0};
  std::atomic<std::size_t> num_allocations_{0};
};

}  // namespace mylos
