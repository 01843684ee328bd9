// SPDX-License-Identifier: BSD-3-Clause
// The ranks of a node are counted, on even and on uneven nodes.
#include "backends/comm_nccl/ranks_on_node.hpp"

#include <gtest/gtest.h>

#include "tests/support/test_plugins.hpp"

namespace mylos::comm_nccl {
namespace {

TEST(RanksOnNode, AreCountedOnUnevenNodes) {
  const auto world = open_communicator("mpi");
  EXPECT_EQ(ranks_on_node(*world, own_node()), world->size());
  const bool is_alone = world->rank() == world->size() - 1;  // the last rank has a node of its own
  const int others = world->size() - 1;
  EXPECT_EQ(ranks_on_node(*world, is_alone ? "b" : "a"), is_alone ? 1 : others);
}

}  // namespace
}  // namespace mylos::comm_nccl
