// SPDX-License-Identifier: BSD-3-Clause
// Steps that are played on a clock: the same list as the plan of memory and payload, the makespans of
// schedules, and what waits and overlap come to.
#include "parallel/plan/played_step.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "parallel/plan/run_plan.hpp"
#include "parallel/schedule/simulation.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/seed.hpp"

namespace mylos {
namespace {

/// A machine with 1 TFLOP/s, 100 GB/s of memory and 1 GB/s between ranks.
Machine simple_machine() {
  Machine machine;
  machine.name = "simple";
  machine.peak.fill(1e12);
  machine.product_share = 1.0;
  machine.bandwidth = 1e11;
  machine.kernel_shares.fill(1.0);
  machine.attention_shares[64] = 1.0;
  machine.node_bandwidth = 1e9;
  machine.network_bandwidth = 1e8;
  return machine;
}

ModelConfig small_model(std::int64_t layers = 4) {
  return {.layers = layers, .heads = 2, .width = 32, .context = 16, .vocab = 131};
}

RunConfig config_of(std::int64_t data, std::int64_t accumulation, std::int64_t layers = 4) {
  return mini_config(small_model(layers), data * accumulation * 2, 16, data, accumulation);
}

void divide_into_stages(RunConfig& config, std::string_view schedule, int stages, int chunks) {
  config.parallel.pipeline = stages;
  config.parallel.chunks = chunks;
  config.parallel.schedule = &find_kind(schedules(), schedule);
  config.parallel.cuts.clear();
  for (int chunk = 1; chunk < config.parallel.scope(1).num_chunks(); ++chunk)
    config.parallel.cuts.push_back(chunk + 1);  // the embedding is with the first block
}

double seconds_of_operations(const PlayedStep::Lane& lane) {
  double seconds = 0.0;
  for (const auto& [name, operation] : lane.operations) seconds += operation.seconds;
  return seconds;
}

/// With the same times of passes and nothing else, the list of entries takes what its passes take.
TEST(PlayedStep, HasTheMakespansOfItsSchedule) {
  std::mt19937 random(test::seed_of_tests());
  const char* matrix = std::getenv("MYLOS_MATRIX");
  const int draws = matrix != nullptr ? std::atoi(matrix) : 8;
  for (const ScheduleKind* kind : schedules()) {
    const std::string name = kind->name;
    if (name == "file" || name == "accumulate" || kind->is_asynchronous()) continue;
    for (int draw = 0; draw < draws; ++draw) {
      const auto number = [&](int least, int most) {
        return std::uniform_int_distribution(least, most)(random);
      };
      const int stages = number(2, 16);
      const int chunks = kind->chunks > 0 ? kind->chunks : number(2, 4);
      const int micro_batches = name == "interleaved" ? stages * number(1, 64 / stages) : number(1, 64);
      SCOPED_TRACE(
          fmt::format("{}, {} stages x {} chunks, {} micro-batches", name, stages, chunks, micro_batches));
      RunConfig config = config_of(1, micro_batches, std::int64_t{stages} * chunks);
      divide_into_stages(config, name, stages, chunks);
      const ScheduleScope scope = config.parallel.scope(micro_batches);
      const std::vector<PassTimes> times(static_cast<std::size_t>(scope.num_chunks()));
      const PlayedStep played = play_step(config, simple_machine(), {.pass_times = times});
      EXPECT_EQ(played.step, simulate(kind->make(scope), times).makespan);
      EXPECT_EQ(played.lanes.size(), static_cast<std::size_t>(stages));
    }
  }
}

/// The plan of payload, the played step: one list.
TEST(PlayedStep, CountsWhatThePlanCounts) {
  for (const char* exchange : {"ddp", "zero1", "zero2", "zero3"}) {
    for (const int tensor : {1, 2}) {
      for (const bool splits : {false, true}) {
        for (const int accumulation : {1, 3}) {
          for (const Recompute recompute : {Recompute::none, Recompute::block}) {
            RunConfig config = config_of(2, accumulation);
            config.parallel.tensor = tensor;
            config.parallel.splits = {.vocab = splits && tensor > 1, .sequence = splits && tensor > 1};
            config.train.recompute = recompute;
            set_exchange(config, exchange, 2);
            const PlayedStep played = play_step(config, simple_machine());
            ASSERT_EQ(played.lanes.size(), 1U);
            EXPECT_EQ(played.lanes[0].traffic, make_plans(config).front().traffic)
                << exchange << tensor << splits;
          }
        }
      }
    }
  }
  for (const char* exchange : {"ddp", "zero1"}) {
    for (const int stages : {2, 4}) {
      RunConfig config = config_of(2, 4);
      divide_into_stages(config, "1f1b", stages, 1);
      set_exchange(config, exchange, 2);
      const std::vector<RunPlan> plans = make_plans(config);
      const PlayedStep played = play_step(config, simple_machine());
      ASSERT_EQ(played.lanes.size(), plans.size());
      for (std::size_t i = 0; i < plans.size(); ++i) {
        EXPECT_EQ(played.lanes[i].traffic, plans[i].traffic);
        EXPECT_EQ(played.lanes[i].rank, plans[i].rank);
      }
    }
  }
  RunConfig config = config_of(2, 1);
  config.model.experts = {.count = 4, .width = 32, .capacity = 1.25};
  config.parallel.expert = 2;
  for (const char* exchange : {"ddp", "zero1", "zero2", "zero3"}) {
    set_exchange(config, exchange, 2);
    EXPECT_EQ(play_step(config, simple_machine()).lanes[0].traffic, make_plans(config).front().traffic);
  }
}

/// One rank waits for nothing: a step takes what its operations take.
TEST(PlayedStep, OfOneRankIsTheSumOfItsOperations) {
  for (const int accumulation : {1, 3, 40}) {
    const PlayedStep played = play_step(config_of(1, accumulation), simple_machine());
    ASSERT_EQ(played.lanes.size(), 1U);
    EXPECT_NEAR(played.step, seconds_of_operations(played.lanes[0]), 1e-9 * played.step);
    EXPECT_TRUE(played.lanes[0].waits.empty());
    const auto& phases = played.lanes[0].phases;
    EXPECT_NEAR(phases[0] + phases[1] + phases[2] + phases[3], played.step, 1e-9 * played.step);
  }
}

/// Gradients of two ranks are summed behind the backward pass, except what is summed last.
TEST(PlayedStep, CommunicationIsHiddenOrWaitedFor) {
  RunConfig config = config_of(2, 1);
  set_ddp(config, "bucketed", 0.01);
  Machine machine = simple_machine();
  const PlayedStep slow = play_step(config, machine);
  const PlayedStep::Lane& lane = slow.lanes[0];
  EXPECT_NEAR(slow.step, lane.busy + lane.waits.at("data"), 1e-9);
  EXPECT_GT(lane.communication.at("data"), lane.waits.at("data"));
  EXPECT_NEAR(play_step(config, machine, {.left_out = "data"}).step, lane.busy, 1e-12);
  machine.node_bandwidth = 1e15;
  EXPECT_NEAR(play_step(config, machine).step, lane.busy, 1e-4 * lane.busy);
  // The same ranks on two nodes share the network.
  machine = simple_machine();
  const PlayedStep nodes = play_step(config, machine, {.ranks_per_node = 1});
  EXPECT_NEAR(nodes.lanes[0].communication.at("data"), 10.0 * lane.communication.at("data"), 1e-6);
  EXPECT_GT(nodes.lanes[0].network_bytes, 0.0);
  EXPECT_EQ(nodes.lanes[0].node_bytes, 0.0);
}

/// Groups of ranks that lie on the same nodes use equal parts of the network.
TEST(PlayedStep, GroupsOfANodeShareItsNetwork) {
  const auto communication = [](std::int64_t data, std::int64_t tensor, std::int64_t ranks_per_node) {
    RunConfig config = config_of(data, 1);
    config.parallel.tensor = tensor;
    return play_step(config, simple_machine(), {.ranks_per_node = ranks_per_node})
        .lanes[0]
        .communication.at("data");
  };
  // Of 2 ranks on 2 nodes, and of 4 with tensor pairs within the nodes: half of the gradients at half the
  // rate.
  const double alone = communication(2, 1, 1);
  const double shared = communication(2, 2, 2);
  EXPECT_GT(shared, 0.9 * alone);
  EXPECT_LT(shared, 1.3 * alone);
  EXPECT_LT(communication(2, 2, 4), 0.2 * shared);
}

/// An algorithm takes what its rounds take on the slowest rank; a simulated link replaces the machine's.
TEST(PlayedStep, CollectivesTakeTheTimeOfTheirAlgorithm) {
  RunConfig config = config_of(4, 1);
  Machine machine = simple_machine();
  machine.node_latency = 1e-3;
  machine.bandwidth = 1e30;  // of local steps
  const auto seconds_of = [&](const char* algorithm, std::optional<LinkModel> link) {
    const PlayedStep played = play_step(config, machine, {.algorithm = algorithm, .link = link});
    const PlayedStep::Lane& lane = played.lanes[0];
    double calls = 0.0;
    for (const TrafficRow& row : lane.traffic) calls += static_cast<double>(row.calls);
    return lane.communication.at("data") / calls;
  };
  const double bytes = play_step(config, machine).lanes[0].node_bytes /
                       static_cast<double>(play_step(config, machine).lanes[0].traffic[0].calls);
  // 2 (P - 1) messages of a P-th, and a tree's messages up and down, all of whose ranks wait.
  EXPECT_NEAR(seconds_of("ring", {}), 6 * 1e-3 + 6.0 / 4.0 * bytes / 1e9, 1e-5);
  EXPECT_NEAR(seconds_of("tree", {}), 4 * 1e-3 + 4.0 * bytes / 1e9, 1e-5);
  EXPECT_NEAR(seconds_of("ring", LinkModel{.latency = 2e-3, .gigabits_per_second = 80.0}),
              6 * 2e-3 + 6.0 / 4.0 * bytes / 1e10, 1e-5);
}

/// What another program does differently, key by key.
TEST(PlayedStep, DescribesOtherPrograms) {
  RunConfig config = config_of(2, 2);
  config.parallel.tensor = 2;
  config.train.recompute = Recompute::block;
  config.train.dtype = DType::bf16;
  set_ddp(config, "bucketed", 0.01);
  const auto play = [&](const Software& software) {
    Machine machine = simple_machine();
    machine.software = software;
    return play_step(config, machine);
  };
  const Software plain{.attention_is_whole = true, .score_bytes = 13, .score_backward_bytes = 19};
  const PlayedStep base = play(plain);
  const auto with = [&](auto member, auto value) {
    Software own = plain;
    own.*member = value;
    return play(own);
  };
  EXPECT_NEAR(with(&Software::factor, 2.0).step, 2.0 * base.step, 1e-12);
  EXPECT_NEAR(with(&Software::tensor_hidden, 0.25).lanes[0].communication.at("tensor"),
              0.75 * base.lanes[0].communication.at("tensor"), 1e-12);
  const auto longer = [&](const PlayedStep& other) { return other.step > (1.0 + 1e-6) * base.step; };
  EXPECT_TRUE(longer(with(&Software::forward_bytes, 1000.0)));
  EXPECT_TRUE(longer(with(&Software::backward_bytes, 1000.0)));
  EXPECT_TRUE(longer(with(&Software::loss_bytes, 1000.0)));
  EXPECT_TRUE(longer(with(&Software::score_bytes, 1000.0)));
  EXPECT_TRUE(longer(with(&Software::score_backward_bytes, 1000.0)));
  EXPECT_TRUE(longer(with(&Software::bandwidth_share, 0.1)));
  EXPECT_TRUE(longer(with(&Software::attention_is_recomputed, true)));
  EXPECT_TRUE(longer(with(&Software::recomputes_whole_blocks, true)));
  EXPECT_TRUE(longer(with(&Software::host, 1.0)));
  // Gradients that are summed after the last micro-batch are not hidden.
  const PlayedStep late = with(&Software::data_exchange, DataExchange::after);
  EXPECT_NEAR(late.lanes[0].waits.at("data"), late.lanes[0].communication.at("data"), 1e-12);
  EXPECT_LT(base.lanes[0].waits.at("data"), late.lanes[0].waits.at("data"));
  EXPECT_EQ(with(&Software::data_exchange, DataExchange::after_stages).step, base.step);
  // All of the tensor axis is waited for; mylos hides a part behind gradients of weights.
  RunConfig alone = config;
  alone.parallel.data = 1;
  alone.train.global_batch /= 2;
  Machine machine = simple_machine();
  const PlayedStep mylos = play_step(alone, machine);
  EXPECT_LT(mylos.lanes[0].waits.at("tensor"), 0.999 * mylos.lanes[0].communication.at("tensor"));
  machine.software = plain;
  const PlayedStep exposed = play_step(alone, machine);
  EXPECT_NEAR(exposed.lanes[0].waits.at("tensor"), exposed.lanes[0].communication.at("tensor"), 1e-12);
  // What the tensor axis divides, and what it does not.
  Software divided = plain;
  divided.forward_bytes = 1000.0;
  const double whole = play(divided).step;
  divided.forward_divided = 1000.0;
  EXPECT_LT(play(divided).step, whole);
}

/// Stages wait for each other: (p - 1) / (m + p - 1) of their time if passes alone take any.
TEST(PlayedStep, HasTheBubbleOfItsSchedule) {
  RunConfig config = config_of(1, 8, 4);
  divide_into_stages(config, "1f1b", 4, 1);
  const PlayedStep played = play_step(config, simple_machine(), {.pass_times = std::vector<PassTimes>(4)});
  EXPECT_NEAR(played.bubble(), 3.0 / 11.0, 1e-12);
}

/// A host that takes longer to queue operations than they run bounds the step, unless it records graphs.
TEST(PlayedStep, TheHostBoundsSmallModels) {
  Machine machine = simple_machine();
  machine.host = 1e-3;
  const RunConfig config = config_of(1, 1);
  const PlayedStep bound = play_step(config, machine);
  std::int64_t calls = 0;
  for (const auto& [name, operation] : bound.lanes[0].operations) calls += operation.calls;
  EXPECT_NEAR(bound.step, 1e-3 * static_cast<double>(calls), 1e-6);
  EXPECT_GT(bound.lanes[0].host, 0.9 * bound.step);
  machine.graph_host = 1e-6;
  const PlayedStep graphs = play_step(config, machine, {.has_graphs = true});
  EXPECT_LT(graphs.step, 0.1 * bound.step);
}

/// Steps that overlap are played until they are in a steady state; replicas are lanes of their own.
TEST(PlayedStep, AsynchronousPipelinesKeepTheirStagesBusy) {
  for (const char* name : {"pipedream", "pipedream_2bw"}) {
    for (const int data : {1, 2}) {
      RunConfig config = config_of(data, 4);
      config.model.tied = false;
      config.parallel.values.set("parallel.vertical_sync", false);
      divide_into_stages(config, name, 4, 1);
      const std::vector<PassTimes> times(4);
      const PlayedStep played = play_step(config, simple_machine(), {.pass_times = times});
      EXPECT_EQ(played.lanes.size(), static_cast<std::size_t>(4 * data));
      // Four micro-batches of three units per replica, and no bubble.
      EXPECT_NEAR(played.step, 12.0, 1e-9) << name << data;
    }
  }
}

TEST(PlayedStep, KeepsEventsForATrace) {
  const PlayedStep played = play_step(config_of(2, 2), simple_machine(), {.keeps_events = true});
  const std::vector<TraceEvent>& events = played.lanes[0].events;
  double operations = 0.0;
  for (const TraceEvent& event : events) {
    EXPECT_GE(event.end, event.begin);
    if (event.kind == TraceKind::operation) operations += 1e-9 * static_cast<double>(event.end - event.begin);
  }
  EXPECT_NEAR(operations, played.lanes[0].busy, 1e-6);
  EXPECT_TRUE(
      std::ranges::any_of(events, [](const TraceEvent& event) { return event.kind == TraceKind::phase; }));
}

}  // namespace
}  // namespace mylos
