// SPDX-License-Identifier: BSD-3-Clause
// How ranks find out with which others they share processors.
#include "io/node_sharing.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/processors.hpp"
#include "io/agree.hpp"

namespace mylos {
namespace {

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

TEST(GatherTexts, GathersSetsOfAnySize) {
  const auto every_second = [](int count) {
    Processors processors(static_cast<std::size_t>(count));
    std::iota(processors.begin(), processors.end(), 0);
    for (int& processor : processors) processor *= 2;
    return processors;
  };
  const std::vector<std::string> texts =
      gather_texts(MPI_COMM_WORLD, text_of(every_second(1 + 2000 * world_rank())));
  ASSERT_EQ(std::ssize(texts), world_size());
  for (int r = 0; r < world_size(); ++r)
    EXPECT_EQ(texts[static_cast<std::size_t>(r)], text_of(every_second(1 + 2000 * r)));
}

TEST(NodeSharing, IsWithTheRanksOfTheSameProcessors) {
  const Processors before = own_processors();
  const auto rank = static_cast<std::size_t>(world_rank());
  ASSERT_EQ(bind_thread({before[rank % before.size()]}), 0);
  const std::vector<std::string> all = gather_texts(MPI_COMM_WORLD, text_of(own_processors()));
  const Sharing sharing = sharing_on(MPI_COMM_WORLD);
  EXPECT_EQ(sharing.node, world_size());
  EXPECT_EQ(sharing.processors, std::ranges::count(all, all[rank]));
  EXPECT_EQ(sharing.index, std::count(all.begin(), all.begin() + world_rank(), all[rank]));
  EXPECT_EQ(own_thread_limits(sharing).front().threads, 1);
  ASSERT_EQ(bind_thread(before), 0);
}

}  // namespace
}  // namespace mylos
