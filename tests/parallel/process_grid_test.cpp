// SPDX-License-Identifier: BSD-3-Clause
// Coordinates and groups of process grids, square or not, against a table of all ranks made here.
#include "parallel/process_grid.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

using Indices = std::array<int, num_axes>;

/// The coordinates of all ranks, the tensor axis fastest.
std::vector<Indices> all_coordinates(const GridExtents& e) {
  std::vector<Indices> all;
  for (int p = 0; p < e.pipeline; ++p)
    for (int r = 0; r < e.replicate; ++r)
      for (int s = 0; s < e.shard; ++s)
        for (int x = 0; x < e.expert; ++x)
          for (int c = 0; c < e.context; ++c)
            for (int t = 0; t < e.tensor; ++t) all.push_back({t, c, x, s, r, p});
  return all;
}

std::vector<GridExtents> grids_of(int ranks) {
  std::vector<GridExtents> grids;
  for (int a = 1; a <= ranks; ++a) {
    for (int b = 1; a * b <= ranks; ++b) {
      if (ranks % (a * b) != 0) continue;
      const int c = ranks / (a * b);
      grids.push_back({.replicate = a, .tensor = b, .pipeline = c});
      grids.push_back({.replicate = b, .shard = a, .expert = c});
      grids.push_back({.shard = c, .tensor = a, .context = b});
    }
  }
  return grids;
}

const std::vector<AxisSet>& groups() {
  static const std::vector<AxisSet> sets = {AxisSet{Axis::tensor},
                                            AxisSet{Axis::pipeline},
                                            data_axes,
                                            AxisSet{Axis::tensor, Axis::replicate},
                                            AxisSet{Axis::context, Axis::expert},
                                            loss_axes,
                                            all_axes};
  return sets;
}

TEST(ProcessGrid, GroupsHoldTheRanksThatDifferInTheirAxesOnly) {
  const CommunicatorHandle world = open_communicator("mpi");
  const int me = world->rank();
  for (const GridExtents& extents : grids_of(world->size())) {
    TrafficCounter counter;
    const ProcessGrid grid(*world, extents, groups(), counter, nullptr);
    const Coordinates& at = grid.coordinates();
    const std::vector<Indices> all = all_coordinates(extents);
    const Indices& own = all[static_cast<std::size_t>(me)];
    for (int i = 0; i < num_axes; ++i) {
      EXPECT_EQ(at.index(static_cast<Axis>(i)), own[static_cast<std::size_t>(i)]);
    }
    // Communicators exist before they are asked for: ranks may ask in different orders.
    std::vector<AxisSet> order = groups();
    std::ranges::rotate(order, order.begin() + me % static_cast<int>(order.size()));
    for (const AxisSet axes : order) {
      EXPECT_EQ(grid.group(axes).size(), at.extent(axes));
      EXPECT_EQ(grid.group(axes).rank(), at.index(axes));
    }
    for (const AxisSet axes : groups()) {
      std::vector<std::int32_t> expected;
      for (std::size_t r = 0; r < all.size(); ++r) {
        bool member = true;
        for (int i = 0; i < num_axes; ++i) {
          const auto axis = static_cast<std::size_t>(i);
          member = member && (axes.contains(static_cast<Axis>(i)) || all[r][axis] == own[axis]);
        }
        if (member) expected.push_back(static_cast<std::int32_t>(r));
      }
      Communicator& group = grid.group(axes);
      ASSERT_EQ(group.size(), static_cast<int>(expected.size()));
      std::int32_t rank = me;
      std::vector<std::int32_t> members(expected.size());
      group
          .all_gather(TensorRef(&rank, DType::int32, {1}),
                      TensorRef(members.data(), DType::int32, {group.size()}))
          .host_wait();
      EXPECT_EQ(members, expected);
      // Axes with one rank do not make another group.
      EXPECT_EQ(&grid.group(axes.common(at.used_axes())), &group);
    }
    EXPECT_EQ(counter.totals().calls, groups().size());
  }
}

TEST(ProcessGrid, CountsDataParallelRunsAsData) {
  const CommunicatorHandle world = open_communicator("mpi");
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  TrafficCounter counter;
  const std::vector<AxisSet> sets = {loss_axes, all_axes};
  const ProcessGrid grid(*world, {.replicate = world->size()}, sets, counter, nullptr);
  EXPECT_EQ(&grid.group(loss_axes), &grid.group(all_axes));
  EXPECT_EQ(ProcessGrid::distinct(grid.coordinates(), sets).size(), 1U);
  grid.group(all_axes).barrier();
  EXPECT_EQ(counter.axis("data").calls(Operation::barrier), 1U);
}

TEST(ProcessGrid, HasNoGroupThatItWasNotMadeWith) {
  const CommunicatorHandle world = open_communicator("mpi");
  if (world->size() != 4) GTEST_SKIP() << "for four ranks";
  TrafficCounter counter;
  const std::vector<AxisSet> sets = {loss_axes};
  const ProcessGrid grid(*world, {.replicate = 2, .tensor = 2}, sets, counter, nullptr);
  EXPECT_THROW(grid.group({Axis::tensor}), Error);
}

TEST(ProcessGrid, RefusesExtentsThatDoNotMultiplyToTheWorld) {
  const CommunicatorHandle world = open_communicator("mpi");
  TrafficCounter counter;
  try {
    const ProcessGrid grid(*world, {.tensor = world->size() + 1}, groups(), counter, nullptr);
    FAIL() << "a grid that does not fit was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find(fmt::format("tensor {}", world->size() + 1)), std::string::npos);
  }
}

TEST(ProcessGrid, NamesSetsOfAxes) {
  EXPECT_EQ(name_of(data_axes), "data");
  EXPECT_EQ(name_of(AxisSet{Axis::shard}), "shard");
  EXPECT_EQ(name_of(AxisSet{Axis::tensor, Axis::shard, Axis::replicate}), "tensor+data");
  EXPECT_EQ(name_of(all_axes), "world");
  EXPECT_EQ(name_of(AxisSet{}), "none");
}

}  // namespace
}  // namespace mylos
