// SPDX-License-Identifier: BSD-3-Clause
// Which blocks a pool of scratch memory lends, and that it charges them to the ledger.
#include "parallel/collectives/scratch_pool.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

#include "core/memory/memory_ledger.hpp"

namespace mylos {
namespace {

TEST(ScratchSizes, LendsTheSmallestSufficientBlock) {
  ScratchSizes pool;
  for (const std::size_t bytes : {100U, 300U, 200U}) {
    const ScratchSizes::Lent lent = pool.take(bytes);
    EXPECT_TRUE(lent.is_new);
    EXPECT_EQ(lent.capacity, bytes);
    EXPECT_EQ(lent.replaced, 0U);
  }
  for (const std::size_t bytes : {100U, 300U, 200U}) pool.give_back(bytes);
  for (const auto& [bytes, capacity] : {std::pair(50U, 100U), std::pair(200U, 200U), std::pair(101U, 300U)}) {
    const ScratchSizes::Lent lent = pool.take(bytes);
    EXPECT_FALSE(lent.is_new) << bytes;
    EXPECT_EQ(lent.capacity, capacity) << bytes;
  }
  EXPECT_EQ(pool.allocated(), 600U);
}

TEST(ScratchSizes, ReplacesTheLargestBlockByALargerOne) {
  ScratchSizes pool;
  pool.take(100);
  pool.take(200);
  pool.give_back(100);
  pool.give_back(200);
  EXPECT_EQ(pool.take(500).replaced, 200U);
  EXPECT_EQ(pool.allocated(), 600U);
  pool.give_back(500);
  EXPECT_EQ(pool.take(400).capacity, 500U);
  EXPECT_EQ(pool.take(100).capacity, 100U);
  EXPECT_EQ(pool.allocated(), 600U);
}

TEST(ScratchPool, ChargesItsBlocksToTheLedger) {
  MemoryLedger ledger;
  ScratchPool pool(&ledger);
  const auto charged = [&] { return ledger.current(MemoryCategory::communication); };
  for (int step = 0; step < 3; ++step) {
    const ScratchPool::Lease one = pool.take(100);
    const ScratchPool::Lease other = pool.take(300);
    EXPECT_EQ(pool.take(0).data(), nullptr);
    std::memset(one.data(), 1, 100);
    std::memset(other.data(), 2, 300);
    EXPECT_TRUE(std::all_of(one.data(), one.data() + 100, [](std::byte b) { return b == std::byte{1}; }));
    EXPECT_EQ(charged(), 400U);
  }
  EXPECT_EQ(ledger.num_charges(), 2U) << "later steps find the same blocks";
  EXPECT_EQ(ledger.peak(MemoryCategory::communication), 400U);
  pool.take(1000);
  EXPECT_EQ(charged(), 1100U) << "the largest made room";
  EXPECT_EQ(ledger.peak(MemoryCategory::communication), 1100U);
}

}  // namespace
}  // namespace mylos
