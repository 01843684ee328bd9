// SPDX-License-Identifier: BSD-3-Clause
#include "core/memory/memory_ledger.hpp"

#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/memory/memory_charge.hpp"

namespace mylos {
namespace {

TEST(MemoryLedger, KnowsCurrentAndPeakByCategory) {
  MemoryLedger ledger;
  ledger.charge(MemoryCategory::parameters, 100);
  ledger.charge(MemoryCategory::workspace, 30);
  ledger.release(MemoryCategory::workspace, 30);
  ledger.charge(MemoryCategory::activations, 20);
  EXPECT_EQ(ledger.current(), 120U);
  EXPECT_EQ(ledger.current(MemoryCategory::workspace), 0U);
  EXPECT_EQ(ledger.peak(), 130U);
  EXPECT_EQ(ledger.peak(MemoryCategory::parameters), 100U);
  EXPECT_EQ(ledger.peak(MemoryCategory::workspace), 30U);
  EXPECT_EQ(ledger.peak(MemoryCategory::activations), 20U);
  EXPECT_EQ(ledger.num_charges(), 3U);
}

TEST(MemoryLedger, RefusesToReleaseWhatWasNotCharged) {
  MemoryLedger ledger;
  ledger.charge(MemoryCategory::parameters, 100);
  EXPECT_THROW(ledger.release(MemoryCategory::gradients, 1), Error);
  EXPECT_THROW(ledger.release(MemoryCategory::parameters, 101), Error);
  EXPECT_EQ(ledger.current(), 100U);
}

/// What a buffer held before an assignment is freed with the assignment, not when the source goes.
TEST(MemoryCharge, ReleasesWhatItHeldWhenAnotherIsAssigned) {
  MemoryLedger ledger;
  MemoryCharge charge(&ledger, MemoryCategory::workspace, 100);
  MemoryCharge other(&ledger, MemoryCategory::gradients, 20);
  charge = std::move(other);
  EXPECT_EQ(ledger.current(), 20U);
  EXPECT_EQ(ledger.current(MemoryCategory::workspace), 0U);
  EXPECT_EQ(charge.bytes(), 20U);
  EXPECT_EQ(other.bytes(), 0U);  // NOLINT(bugprone-use-after-move)
  MemoryCharge& same = charge;
  charge = std::move(same);
  EXPECT_EQ(ledger.current(), 20U);
  charge = {};
  EXPECT_EQ(ledger.current(), 0U);
}

TEST(MemoryLedger, CountsFromSeveralThreads) {
  constexpr int threads = 4;
  constexpr int rounds = 10000;
  MemoryLedger ledger;
  {
    std::vector<std::jthread> workers;
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&] {
        for (int round = 0; round < rounds; ++round) {
          ledger.charge(MemoryCategory::communication, 8);
          ledger.release(MemoryCategory::communication, 8);
        }
      });
    }
  }
  EXPECT_EQ(ledger.current(), 0U);
  EXPECT_EQ(ledger.num_charges(), static_cast<std::uint64_t>(threads * rounds));
  EXPECT_GE(ledger.peak(), 8U);
  EXPECT_LE(ledger.peak(), 8U * threads);
}

}  // namespace
}  // namespace mylos
