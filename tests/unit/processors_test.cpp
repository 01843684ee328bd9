// SPDX-License-Identifier: BSD-3-Clause
// The processors of threads, and how ranks divide those that they share, on machines of any size.
#include "core/base/processors.hpp"

#include <numeric>
#include <sched.h>

#include <gtest/gtest.h>

namespace mylos {
namespace {

Processors range(int count) {
  Processors processors(static_cast<std::size_t>(count));
  std::iota(processors.begin(), processors.end(), 0);
  return processors;
}

TEST(EvenShare, PartsAreDisjointAndCoverAllCores) {
  const Processors cores = {1, 3, 4, 9, 64, 65, 130};
  for (int count = 1; count <= 7; ++count) {
    Processors all;
    for (int index = 0; index < count; ++index) {
      const Processors share = even_share(cores, index, count);
      EXPECT_GE(std::ssize(share), 7 / count);
      EXPECT_LE(std::ssize(share), (7 + count - 1) / count);
      all.insert(all.end(), share.begin(), share.end());
    }
    EXPECT_EQ(all, cores);
  }
}

TEST(EvenShare, PartsAreContiguous) {
  const Processors cores = {2, 3, 6, 7};
  EXPECT_EQ(even_share(cores, 0, 2), (Processors{2, 3}));
  EXPECT_EQ(even_share(cores, 1, 2), (Processors{6, 7}));
}

TEST(EvenShare, MoreRanksThanCoresShareThemAll) {
  EXPECT_EQ(even_share({0, 1}, 2, 4), (Processors{0, 1}));
}

TEST(EvenShare, DividesMoreThanAThousandProcessors) {
  const Processors last = even_share(range(4096), 7, 8);
  EXPECT_EQ(last.size(), 512U);
  EXPECT_EQ(text_of(last), "3584-4095");
}

TEST(TextOf, NamesRanges) {
  EXPECT_EQ(text_of({}), "");
  EXPECT_EQ(text_of({5}), "5");
  EXPECT_EQ(text_of({0, 1, 2, 3, 8, 1023, 1024}), "0-3,8,1023-1024");
}

TEST(CountProcessors, CountsEachOnceOnMachinesOfAnySize) {
  EXPECT_EQ(count_processors(std::vector<std::string>{"0-3,8", "2-5"}), 7);
  EXPECT_EQ(count_processors(std::vector<std::string>{"0-1023", "512-4095", "9000"}), 4097);
}

TEST(OwnProcessors, AreTheProcessorsThatTheThreadIsBoundTo) {
  const Processors before = own_processors();
  ASSERT_FALSE(before.empty());
  ASSERT_EQ(bind_thread({before.back()}), 0);
  EXPECT_EQ(own_processors(), Processors{before.back()});
  EXPECT_EQ(sched_getcpu(), before.back());
  ASSERT_EQ(bind_thread(before), 0);
  EXPECT_EQ(own_processors(), before);
}

// Only with HWLOC_SYNTHETIC, which hwloc reads once per process: ctest -R large_machine_test.
TEST(OwnProcessors, DISABLED_CoverALargeMachine) {
  const Processors all = own_processors();
  EXPECT_EQ(all, range(1280));
  EXPECT_EQ(bind_thread(even_share(all, 1, 2)), 0);
}

// A set that contains no processor of the machine is refused.
TEST(BindThread, RefusesProcessorsThatDoNotExist) {
  EXPECT_NE(bind_thread({1 << 20}), 0);
}

}  // namespace
}  // namespace mylos
