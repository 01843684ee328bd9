// SPDX-License-Identifier: BSD-3-Clause
// The partitioner against trying every division, whose costs are computed here from the published formulas.
#include "parallel/plan/partition.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "tests/support/seed.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using testing::Gt;

const char* schedule_of(VersionsKept kept) {
  return kept == VersionsKept::double_buffered ? "pipedream_2bw" : "pipedream";
}

/// The time of a division, and the memory of its largest rank; nothing if its schedule is not allowed.
struct TriedDivision {
  double time = 0.0;
  double passes = 0.0;  // of the busiest stage
  double memory = 0.0;
};

std::optional<TriedDivision> tried(const PartitionProblem& problem, const std::vector<int>& ends,
                                   const std::vector<int>& replicas) {
  const auto p = static_cast<int>(replicas.size());
  const double a = problem.micro_batches;
  std::vector<int> q(replicas.size(), 1);
  std::vector<int> d(replicas.size());
  for (int s = p - 1; s >= 0; --s) {
    const auto i = static_cast<std::size_t>(s);
    if (s + 1 < p) q[i] = (replicas[i + 1] * q[i + 1] + replicas[i] - 1) / replicas[i] + 1;
    d[i] = replicas[i] == 1 ? q[i] - 1 : q[i] * replicas[i];
  }
  if (p == 1) d[0] = 0;
  if (problem.versions == VersionsKept::double_buffered && d[0] > problem.micro_batches) return std::nullopt;
  const auto node_of = [&](int replica, int place) {
    const int rank = replica * problem.ranks_per_replica + place;
    return problem.ranks_per_node == 0 ? rank : rank / problem.ranks_per_node;
  };
  const auto bandwidth = [&](int from, int to) {
    for (int place = 0; place < problem.ranks_per_replica; ++place) {
      if (node_of(from, place) != node_of(to, place)) return problem.link_bandwidth;
    }
    return problem.node_bandwidth;
  };
  TriedDivision result;
  int first_replica = 0;
  int unit = 0;
  for (std::size_t s = 0; s < replicas.size(); ++s) {
    const int r = replicas[s];
    if (problem.micro_batches % r != 0) return std::nullopt;
    double work = 0.0;
    double parameters = 0.0;
    double kept = 0.0;
    double output = 0.0;
    for (; unit < ends[s]; ++unit) {
      const UnitCost& own = problem.units[static_cast<std::size_t>(unit)];
      work += own.forward + own.input + own.weight;
      parameters += static_cast<double>(own.parameters);
      kept += static_cast<double>(own.kept_bytes);
      output = static_cast<double>(own.output_bytes);
    }
    result.passes = std::max(result.passes, work / r);
    result.time = std::max(result.time, work / r);
    const double own_bandwidth = bandwidth(first_replica, first_replica + r - 1);
    if (r > 1 && own_bandwidth > 0.0)
      result.time =
          std::max(result.time, 2.0 * (r - 1) / r * parameters * problem.gradient_bytes / own_bandwidth / a);
    if (s + 1 < replicas.size()) {
      const double next = bandwidth(first_replica, first_replica + r + replicas[s + 1] - 1);
      if (next > 0.0) result.time = std::max(result.time, 2.0 * output / next);
    }
    double versions = std::ceil(d[s] / a) + 1.0;
    if (problem.versions == VersionsKept::vertical_sync) versions = std::ceil(d[0] / a) + 1.0;
    if (problem.versions == VersionsKept::double_buffered && p > 1) versions = 2.0;
    const double sets = p > 1 && r > 1 ? 2.0 : 1.0;
    result.memory = std::max(
        result.memory,
        parameters * (versions * problem.weight_bytes + sets * problem.gradient_bytes + problem.state_bytes) +
            q[s] * kept);
    first_replica += r;
  }
  return result;
}

/// By number of stages: the shortest time within the limit of memory, and the shortest passes with this time.
std::map<int, std::pair<double, double>> shortest_times(const PartitionProblem& problem) {
  std::map<int, std::pair<double, double>> shortest;
  const auto units = static_cast<int>(problem.units.size());
  std::vector<int> ends, replicas;
  const std::function<void(int, int)> extend = [&](int unit, int used) {
    if (unit == units && used == problem.replicas) {
      const auto result = tried(problem, ends, replicas);
      if (!result || (problem.memory_bytes > 0.0 && result->memory > problem.memory_bytes)) return;
      const std::pair own(result->time, result->passes);
      const auto [known, is_new] = shortest.emplace(std::ssize(ends), own);
      known->second = std::min(known->second, own);
      return;
    }
    for (int end = unit + 1; end <= units; ++end) {
      for (int r = 1; used + r <= problem.replicas; ++r) {
        ends.push_back(end);
        replicas.push_back(r);
        extend(end, used + r);
        ends.pop_back();
        replicas.pop_back();
      }
    }
  };
  extend(0, 0);
  return shortest;
}

PartitionProblem drawn_problem(std::mt19937& random) {
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  PartitionProblem problem;
  const int units = draw(2, 6);
  for (int i = 0; i < units; ++i) {
    problem.units.push_back({.forward = draw(1, 9) * 1.0,
                             .input = draw(1, 9) * 1.0,
                             .weight = draw(1, 9) * 1.0,
                             .parameters = draw(1, 20),
                             .output_bytes = i + 1 < units ? draw(1, 8) : 0,
                             .kept_bytes = draw(0, 60)});
  }
  problem.replicas = draw(1, 5);
  problem.ranks_per_replica = draw(1, 2);
  problem.ranks_per_node = draw(0, problem.replicas * problem.ranks_per_replica);
  problem.micro_batches = draw(1, 12);
  problem.versions = static_cast<VersionsKept>(draw(0, 2));
  problem.gradient_bytes = draw(1, 2) * 2.0;
  if (draw(0, 1) == 1) {
    problem.node_bandwidth = draw(1, 20);
    problem.link_bandwidth = draw(0, 1) == 1 ? problem.node_bandwidth : draw(1, 20) * 0.25;
  }
  if (draw(0, 1) == 1) problem.memory_bytes = draw(50, 2500);
  return problem;
}

TEST(Partitions, AreTheBestOfAll) {
  std::mt19937 random(test::seed_of_tests());
  int limited = 0;
  for (int i = 0; i < 500; ++i) {
    const PartitionProblem problem = drawn_problem(random);
    SCOPED_TRACE("chain " + std::to_string(i));
    const auto found = best_partitions(problem, 100);
    const auto expected = shortest_times(problem);
    for (int stages = 1; stages <= std::ssize(found); ++stages) {
      const std::optional<Partition>& own = found[static_cast<std::size_t>(stages) - 1];
      ASSERT_EQ(own.has_value(), expected.contains(stages)) << stages;
      limited += own ? 0 : 1;
      if (!own) continue;
      EXPECT_NEAR(own->time, expected.at(stages).first, 1e-12 * own->time) << stages;
      EXPECT_NEAR(own->passes, expected.at(stages).second, 1e-12 * own->passes) << stages;
      EXPECT_EQ(own->stages(), stages);
      std::vector<int> ends(own->first_units.begin() + 1, own->first_units.end());
      ends.push_back(static_cast<int>(problem.units.size()));
      const auto result = tried(problem, ends, own->replicas);
      ASSERT_TRUE(result);
      EXPECT_NEAR(result->time, own->time, 1e-12 * own->time);
      EXPECT_NEAR(result->memory, own->memory, 1e-12 * own->memory);
      // The delay is that of the schedule's rules.
      if (stages == 1) {
        EXPECT_EQ(own->delay, 0);
        continue;
      }
      ParamValues values;
      values.set("parallel.vertical_sync", problem.versions == VersionsKept::vertical_sync);
      const auto rules = find_kind(schedules(), schedule_of(problem.versions))
                             .rules({.micro_batches = problem.micro_batches,
                                     .stages = stages,
                                     .replicas = own->replicas,
                                     .values = &values});
      int versions = 0;
      for (const VersionRule& rule : rules) versions = std::max(versions, rule.versions());
      EXPECT_EQ(own->delay, versions - 1);
    }
  }
  EXPECT_THAT(limited, Gt(100));
}

/// A stage with twice the work has twice the replicas, unless their sum takes longer.
TEST(Partitions, WeighReplicasAgainstTheirSum) {
  PartitionProblem problem{.units = {{.forward = 2.0, .input = 2.0, .weight = 2.0, .parameters = 100},
                                     {.forward = 1.0, .input = 1.0, .weight = 1.0, .parameters = 100}},
                           .replicas = 3,
                           .ranks_per_node = 3,
                           .micro_batches = 4};
  const Partition best = *best_partitions(problem, 2).at(1);
  EXPECT_THAT(best.replicas, ElementsAre(2, 1));
  EXPECT_EQ(best.time, 3.0);
  EXPECT_EQ(best.bound, Bottleneck::passes);
  EXPECT_EQ(best.delay, 1);       // 2 replicas x 2 in flight, of 4 micro-batches
  problem.node_bandwidth = 20.0;  // the sum of 100 x 4 bytes takes 20, of 4 micro-batches
  const Partition slow = *best_partitions(problem, 2).at(1);
  EXPECT_EQ(slow.time, 5.0);
  EXPECT_EQ(slow.bound, Bottleneck::sum);
  problem.micro_batches = 3;  // neither 2 replicas nor 1 each
  EXPECT_FALSE(best_partitions(problem, 2).at(1));
  EXPECT_TRUE(best_partitions(problem, 2).at(0));
}

TEST(Partitions, TakeManyUnitsAndRanks) {
  std::mt19937 random(test::seed_of_tests());
  PartitionProblem problem;
  for (int i = 0; i < 50; ++i) {
    problem.units.push_back({.forward = 1.0 + static_cast<double>(random() % 100),
                             .input = 1.0,
                             .weight = 1.0,
                             .parameters = static_cast<std::int64_t>(random() % 1000),
                             .output_bytes = 10,
                             .kept_bytes = 100});
  }
  problem.replicas = 16;
  problem.ranks_per_node = 4;
  problem.micro_batches = 48;
  problem.node_bandwidth = 100.0;
  problem.link_bandwidth = 10.0;
  problem.memory_bytes = 1e6;
  const auto found = best_partitions(problem, 16);
  EXPECT_EQ(found.size(), 16U);
  for (std::size_t stages = 2; stages <= 16; ++stages) EXPECT_TRUE(found[stages - 1]) << stages;
}

}  // namespace
}  // namespace mylos
