// SPDX-License-Identifier: BSD-3-Clause
// How ranks divide the cores that they share.
#include "app/core_share.hpp"

#include <gtest/gtest.h>

namespace mylos {
namespace {

cpu_set_t set_of(std::initializer_list<int> cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  return set;
}

TEST(EvenShare, PartsAreDisjointAndCoverAllCores) {
  const cpu_set_t cores = set_of({1, 3, 4, 9, 64, 65, 130});
  for (int count = 1; count <= 7; ++count) {
    cpu_set_t all;
    CPU_ZERO(&all);
    int total = 0;
    for (int index = 0; index < count; ++index) {
      const cpu_set_t share = even_share(cores, index, count);
      const int size = CPU_COUNT(&share);
      EXPECT_GE(size, 7 / count);
      EXPECT_LE(size, (7 + count - 1) / count);
      total += size;
      CPU_OR(&all, &all, &share);
    }
    EXPECT_EQ(total, 7);
    EXPECT_TRUE(CPU_EQUAL(&all, &cores));
  }
}

TEST(EvenShare, PartsAreContiguous) {
  const cpu_set_t cores = set_of({2, 3, 6, 7});
  const cpu_set_t first = set_of({2, 3});
  const cpu_set_t second = set_of({6, 7});
  const cpu_set_t shares[] = {even_share(cores, 0, 2), even_share(cores, 1, 2)};
  EXPECT_TRUE(CPU_EQUAL(&shares[0], &first));
  EXPECT_TRUE(CPU_EQUAL(&shares[1], &second));
}

TEST(EvenShare, MoreRanksThanCoresShareThemAll) {
  const cpu_set_t cores = set_of({0, 1});
  const cpu_set_t share = even_share(cores, 2, 4);
  EXPECT_TRUE(CPU_EQUAL(&share, &cores));
}

TEST(OwnCores, NamesRanges) {
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  const cpu_set_t one = set_of({first});
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(own_cores(), std::to_string(first));
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  if (CPU_COUNT(&before) == 1 || !CPU_ISSET(first + 1, &before)) GTEST_SKIP() << "one core";
  EXPECT_EQ(own_cores().rfind(std::to_string(first) + "-", 0), 0U) << own_cores();
}

}  // namespace
}  // namespace mylos
