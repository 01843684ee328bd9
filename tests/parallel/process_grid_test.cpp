// SPDX-License-Identifier: BSD-3-Clause
// Coordinates and groups of process grids, square or not, against a table of all ranks that the test
// computes, and how reports name failures within a group.
#include "parallel/process_grid.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/join.hpp"
#include "parallel/health/failure_detector.hpp"
#include "parallel/health/flight_recorder.hpp"
#include "tests/support/gather_over.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

using Indices = std::array<int, num_axes>;

/// The coordinates of all ranks, the tensor axis fastest.
std::vector<Indices> all_coordinates(const GridExtents& e) {
  std::vector<Indices> all;
  for (int p = 0; p < e[Axis::pipeline]; ++p)
    for (int r = 0; r < e[Axis::replicate]; ++r)
      for (int s = 0; s < e[Axis::shard]; ++s)
        for (int x = 0; x < e[Axis::expert]; ++x)
          for (int c = 0; c < e[Axis::context]; ++c)
            for (int t = 0; t < e[Axis::tensor]; ++t) all.push_back({t, c, x, s, r, p});
  return all;
}

std::vector<GridExtents> grids_of(int ranks) {
  std::vector<GridExtents> grids;
  for (int a = 1; a <= ranks; ++a) {
    for (int b = 1; a * b <= ranks; ++b) {
      if (ranks % (a * b) != 0) continue;
      const int c = ranks / (a * b);
      grids.push_back({{Axis::replicate, a}, {Axis::tensor, b}, {Axis::pipeline, c}});
      grids.push_back({{Axis::replicate, b}, {Axis::shard, a}, {Axis::expert, c}});
      grids.push_back({{Axis::shard, c}, {Axis::tensor, a}, {Axis::context, b}});
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
  const std::unique_ptr<Communicator> world = open_communicator("shm");
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
    // Communicators exist before they are requested: ranks may request them in different orders.
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
      // An axis of extent 1 does not create another group.
      EXPECT_EQ(&grid.group(axes.common(at.used_axes())), &group);
    }
    const auto sends = [&](AxisSet axes) { return at.extent(axes) > 1; };
    std::uint64_t calls = 0;
    for (const TrafficRow& row : counter.table()) calls += row.calls;
    EXPECT_EQ(calls, std::ranges::count_if(groups(), sends));
  }
}

TEST(ProcessGrid, CountsDataParallelRunsAsData) {
  const std::unique_ptr<Communicator> world = open_communicator("shm");
  if (world->size() == 1) GTEST_SKIP() << "needs at least two ranks";
  TrafficCounter counter;
  const std::vector<AxisSet> sets = {loss_axes, all_axes};
  const ProcessGrid grid(*world, {{Axis::replicate, world->size()}}, sets, counter, nullptr);
  EXPECT_EQ(&grid.group(loss_axes), &grid.group(all_axes));
  EXPECT_EQ(ProcessGrid::distinct(grid.coordinates(), sets).size(), 1U);
  grid.group(all_axes).barrier();
  EXPECT_EQ(counter.axis("data").calls(CommOperation::barrier), 1U);
}

TEST(ProcessGrid, HasOnlyTheGroupsThatItWasMadeWith) {
  const std::unique_ptr<Communicator> world = open_communicator("shm");
  if (world->size() != 4) GTEST_SKIP() << "for four ranks";
  TrafficCounter counter;
  const std::vector<AxisSet> sets = {loss_axes};
  const ProcessGrid grid(*world, {{Axis::replicate, 2}, {Axis::tensor, 2}}, sets, counter, nullptr);
  EXPECT_THROW(grid.group({Axis::tensor}), Error);
}

TEST(ProcessGrid, RefusesExtentsThatDoNotMultiplyToTheWorld) {
  const std::unique_ptr<Communicator> world = open_communicator("shm");
  TrafficCounter counter;
  try {
    const ProcessGrid grid(*world, {{Axis::tensor, world->size() + 1}}, groups(), counter, nullptr);
    FAIL() << "a grid that does not fit was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find(fmt::format("tensor {}", world->size() + 1)), std::string::npos);
  }
}

/// The groups of hybrid sharding: pairs of neighbours that share one copy of the model's state, and the ranks
/// that hold the same part in different pairs.
class HybridGrid : public testing::Test {
 protected:
  void SetUp() override {
    if (world_->size() < 4 || world_->size() % 2 != 0)
      GTEST_SKIP() << "needs an even number of ranks, at least four";
    recorder_ = std::make_unique<FlightRecorder>(world_->rank(), test::gather_over(*world_));
  }
  ProcessGrid make_grid(bool is_checked) {
    const GridExtents extents{{Axis::replicate, world_->size() / 2}, {Axis::shard, 2}};
    return {*world_, extents, sets_, counter_, recorder_.get(), is_checked};
  }
  /// What every rank has recorded, also the ranks of other nodes.
  std::vector<RankFlight> read_all() {
    std::vector<RankFlight> node;
    recorder_->read_node(node);
    RankFlight own = *std::ranges::find(node, world_->rank(), &RankFlight::rank);
    static_assert(std::is_trivially_copyable_v<RankFlight>);
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(RankFlight));
    std::vector<RankFlight> all(static_cast<std::size_t>(world_->size()));
    world_
        ->all_gather(TensorRef(&own, DType::uint8, {bytes}),
                     TensorRef(all.data(), DType::uint8, {bytes * world_->size()}))
        .host_wait();
    return all;
  }
  TensorRef buffer(std::int64_t count) { return {values_.data(), DType::fp32, {count}}; }

  std::unique_ptr<Communicator> world_ = open_communicator("shm");
  TrafficCounter counter_;
  std::unique_ptr<FlightRecorder> recorder_;
  std::vector<AxisSet> sets_ = {all_axes, {Axis::shard}, {Axis::replicate}};
  std::array<float, 100> values_{};
};

TEST_F(HybridGrid, DebugBuildsNameTheAxisAndTheCallsOfAMismatchedCollective) {
  if (!calls_are_checked) GTEST_SKIP() << "calls are checked in debug builds";
  const ProcessGrid grid = make_grid(true);
  for (const Axis axis : {Axis::shard, Axis::replicate}) {
    SCOPED_TRACE(name_of(axis));
    Communicator& group = grid.group({axis});
    const auto call = [&](std::int64_t count) -> std::string {
      try {
        group.all_reduce(buffer(count), ReduceOp::sum).host_wait();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::watchdog);
        return error.what();
      }
      return "no mismatch";
    };
    // The last rank of the world is the last along both axes.
    const bool is_victim = world_->rank() == world_->size() - 1;
    const Axis other = axis == Axis::shard ? Axis::replicate : Axis::shard;
    const bool is_with_victim = grid.coordinates().index(other) == grid.coordinates().extent(other) - 1;
    const std::string said = call(is_victim ? 10 : 100);
    if (is_with_victim) {
      EXPECT_THAT(said, StartsWith(fmt::format("mismatched collective on axis {}:\n", name_of(axis))));
      const int victim = world_->size() - 1;
      const int before_victim = axis == Axis::shard ? victim - 1 : victim - 2;
      EXPECT_THAT(said, HasSubstr(fmt::format("rank {}: all_reduce of 40 bytes of fp32", victim)));
      EXPECT_THAT(said, HasSubstr(fmt::format("rank {}: all_reduce of 400 bytes of fp32", before_victim)));
    } else {
      EXPECT_EQ(said, "no mismatch");
    }
    EXPECT_EQ(call(100), "no mismatch") << "afterwards";
  }
}

TEST_F(HybridGrid, ReportsTheAxisOfAStalledCollective) {
  const ProcessGrid grid = make_grid(false);  // a check would wait for the absent rank
  Communicator& shards = grid.group({Axis::shard});
  Communicator& replicas = grid.group({Axis::replicate});
  const auto start_in = [&](Communicator& group) { return group.all_reduce(buffer(100), ReduceOp::sum); };
  const int rank = world_->rank();
  // Rank 1 makes no call in its shard group, in which rank 0 waits. The others are one call ahead.
  Request of_shards;
  Request of_replicas;
  if (rank != 1) of_shards = start_in(shards);
  if (rank > 1) {
    of_shards.host_wait();
    of_replicas = start_in(replicas);
  }
  world_->barrier();

  using namespace std::chrono_literals;
  constexpr WatchdogLimits limits{.silence = 24h, .operation_timeout = 1min};
  FailureDetector detector(0, limits);
  const std::vector<RankFlight> ranks = read_all();
  EXPECT_FALSE(detector.look(ranks, FailureDetector::TimePoint(1h)));
  EXPECT_TRUE(detector.look(ranks, FailureDetector::TimePoint(1h + 61s)));
  const std::string reason(detector.reason());
  std::vector<int> further;
  for (int r = 2; r < world_->size(); ++r) further.push_back(r);
  EXPECT_EQ(reason,
            fmt::format("stalled collective: rank 0 has been in all_reduce [shard] 400 bytes for more "
                        "than 60.0 s; in all_reduce [shard] 400 bytes: 0; in no operation: 1; in all_reduce "
                        "[replicate] 400 bytes: {}",
                        join(further, ", ")));
  const std::string report(detector.report());
  EXPECT_THAT(report,
              ContainsRegex("\nrank 0 [^\n]*\n  #1 all_reduce .shard. 400 bytes, [^\n]*, UNDER WAY\n"));
  EXPECT_THAT(report, ContainsRegex("\nrank 2 [^\n]*\n  #1 all_reduce .shard. 400 bytes, [^\n]*, done\n"
                                    "  #2 all_reduce .replicate. 400 bytes, [^\n]*, UNDER WAY\n"));
  world_->barrier();

  if (rank == 1) of_shards = start_in(shards);
  of_shards.host_wait();
  if (rank < 2) of_replicas = start_in(replicas);
  of_replicas.host_wait();
  world_->barrier();
  for (const RankFlight& flight : read_all()) EXPECT_EQ(flight.open_operation(), nullptr);
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
