// SPDX-License-Identifier: BSD-3-Clause
// Where a model is cut into chunks: the costs of its units, profiles of them, and the choice by simulation.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/base/kinds.hpp"
#include "core/model/model_programs.hpp"
#include "parallel/plan/choose_cuts.hpp"
#include "parallel/plan/run_plan.hpp"
#include "parallel/plan/unit_costs.hpp"
#include "parallel/schedule/schedule_file.hpp"
#include "parallel/schedule/simulation.hpp"
#include "tests/support/test_schedules.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StepConfig small_config() {
  StepConfig config;
  config.model = {.layers = 3, .heads = 4, .width = 64, .context = 64, .vocab = 1000};
  config.train = {.global_batch = 4, .micro_batch = 4, .accumulation = 1, .seq_len = 32};
  return config;
}

/// GPT-2 124M with micro-batches of 1 x 256 tokens.
StepConfig gpt2_config() {
  StepConfig config;
  config.train = {.global_batch = 8, .micro_batch = 1, .accumulation = 8, .seq_len = 256};
  return config;
}

double flops_of_programs(const std::vector<Program>& programs) {
  double flops = 0.0;
  for (const Program& program : programs) {
    for (const Entry& entry : program.entries) flops += flops_of(entry);
  }
  return flops;
}

double sum_of(const std::vector<UnitCost>& units, double UnitCost::*member) {
  double sum = 0.0;
  for (const UnitCost& unit : units) sum += unit.*member;
  return sum;
}

TEST(UnitCosts, HasTheUnitsInTheOrderOfTheModel) {
  const std::vector<UnitCost> units = unit_costs(small_config());
  std::vector<std::string> names;
  for (const UnitCost& unit : units) names.push_back(unit.name);
  EXPECT_THAT(names, ElementsAre("embedding", "block 0", "block 1", "block 2", "head"));
  std::int64_t parameters = 0;
  for (const UnitCost& unit : units) parameters += unit.parameters;
  EXPECT_EQ(parameters, parameters_of(small_config().model).num_parameters());
  for (std::size_t i = 0; i + 1 < units.size(); ++i) EXPECT_EQ(units[i].output_bytes, 4 * 32 * 64 * 4);
  EXPECT_EQ(units.back().output_bytes, 0);
}

/// A block and its experts are one unit; the others have the costs of a dense model.
TEST(UnitCosts, AreThoseOfTheExpertsThatATokenUses) {
  StepConfig config = gpt2_config();
  const std::vector<UnitCost> dense = unit_costs(config);
  config.model.experts = {.count = 8, .per_token = 2, .width = 4 * 768, .every = 2, .capacity = 0.5};
  const std::vector<UnitCost> units = unit_costs(config);
  ASSERT_EQ(units.size(), dense.size());
  EXPECT_EQ(units[1].forward, dense[1].forward);
  EXPECT_EQ(units[1].parameters, dense[1].parameters);
  const double layer = 2.0 * 256 * 8 * 768 * 768;
  EXPECT_NEAR(units[2].forward, dense[2].forward + layer, 0.01 * layer);
  EXPECT_NEAR(units[2].weight, dense[2].weight + layer, 0.01 * layer);
  std::int64_t parameters = 0;
  for (const UnitCost& unit : units) parameters += unit.parameters;
  EXPECT_EQ(parameters, parameters_of(config.model).num_parameters());
  // A token uses two experts of eight in every second block.
  const double expert = 8.0 * 768 * 768 + 5 * 768;
  const double idle = 6.0 * static_cast<double>(config.model.layers / 2 * 6) * expert;
  EXPECT_DOUBLE_EQ(model_flops_per_token(config.model, parameters, 256),
                   6.0 * static_cast<double>(parameters) - idle +
                       12.0 * static_cast<double>(config.model.layers * 768 * 256));
}

/// A routed block has the costs of the tokens that it takes.
TEST(UnitCosts, AreThoseOfTheTokensThatARoutedBlockTakes) {
  StepConfig config = gpt2_config();
  config.model.feed_forward = 4000;
  const std::vector<UnitCost> dense = unit_costs(config);
  config.model.depths = {.capacity = 0.125, .every = 2};
  const std::vector<UnitCost> units = unit_costs(config);
  ASSERT_EQ(units.size(), dense.size());
  EXPECT_EQ(units[1].forward, dense[1].forward);
  EXPECT_EQ(units[1].kept_bytes, dense[1].kept_bytes);
  EXPECT_NEAR(units[2].forward / dense[2].forward, 0.125, 0.01);
  EXPECT_LT(units[2].kept_bytes, dense[2].kept_bytes / 4);
  std::int64_t parameters = 0;
  for (const UnitCost& unit : units) parameters += unit.parameters;
  EXPECT_EQ(parameters, parameters_of(config.model).num_parameters());
  const std::int64_t routed = config.model.layers / 2;
  const double block = 4.0 * 768 * 768 + 9 * 768 + (2 * 768 + 1) * 4000;
  const double positions =
      static_cast<double>(config.model.layers - routed) * 256 + static_cast<double>(routed) * 0.125 * 32;
  EXPECT_NEAR(model_flops_per_token(config.model, parameters, 256) /
                  (6.0 * (static_cast<double>(parameters) - 0.875 * static_cast<double>(routed) * block) +
                   12.0 * 768 * positions),
              1.0, 1e-12);
}

TEST(UnitCosts, AreThoseOfTheProducts) {
  const std::vector<UnitCost> units = unit_costs(gpt2_config());
  const UnitCost& block = units[1];
  constexpr double rows = 256;
  constexpr double width = 768;
  constexpr double pairs = rows * (rows + 1) / 2;  // of a query and a key that it sees
  const double products = 2 * rows * 12 * width * width;
  const double attention = 2 * 2 * pairs * width;
  EXPECT_NEAR(block.forward, products + attention, 0.01 * products);
  EXPECT_NEAR(block.input, products + 2.5 * attention, 0.01 * products);
  EXPECT_NEAR(block.weight, products, 0.01 * products);
  const UnitCost& head = units.back();
  const double logits = 2 * rows * width * 50304;
  EXPECT_EQ(head.forward, 0.0);  // losses and logits are computed in the backward pass
  EXPECT_NEAR(head.input, 2 * logits, 0.01 * logits);
  EXPECT_NEAR(head.weight, logits, 0.01 * logits);
  EXPECT_NEAR((head.input + head.weight) / (block.forward + block.input + block.weight), 5.3, 0.05);
  EXPECT_LT(units.front().forward, 1e-4 * block.forward);
  EXPECT_GT(units.front().forward, 0.0);
}

/// The slices of logits overwrite one another, so that only the last one's weight gradients can wait.
TEST(UnitCosts, KeepTheSlicesOfTheHeadTogether) {
  StepConfig config = gpt2_config();
  config.train.micro_batch = 4;
  config.model.logits_bytes = 0;  // eight slices
  const UnitCost head = unit_costs(config).back();
  EXPECT_NEAR(head.weight / (head.input + head.weight), 1.0 / 24, 0.001);
}

/// The recomputation of a block repeats all of its forward pass but the last product.
TEST(UnitCosts, IncludeRecomputationWhereItHappens) {
  StepConfig config = gpt2_config();
  const UnitCost plain = unit_costs(config)[1];
  config.train.recompute = Recompute::block;
  const UnitCost repeated = unit_costs(config)[1];
  const double last_product = 2.0 * 256 * 768 * 4 * 768;
  EXPECT_EQ(repeated.forward, plain.forward);
  EXPECT_EQ(repeated.weight, plain.weight);
  EXPECT_NEAR(repeated.input, plain.input + plain.forward - last_product, 0.01 * plain.forward);
  EXPECT_EQ(repeated.kept_bytes, plain.output_bytes);  // the block's input
  // Of 256 rows in fp32: ln1, 3 of qkv, attended, middle, ln2 and 8 of the feed-forward layer, and the input.
  EXPECT_NEAR(static_cast<double>(plain.kept_bytes), 16.0 * 256 * 768 * 4, 0.01 * 16 * 256 * 768 * 4);
}

TEST(UnitCosts, AddUpToThoseOfTheModel) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::block}) {
    for (const int ranks : {1, 2}) {
      for (const float dropout : {0.0F, 0.1F}) {
        StepConfig config = small_config();
        config.train.recompute = recompute;
        config.model.dropout = dropout;
        config.model.tied = dropout > 0.0F;
        config.parallel.tensor = ranks;
        config.parallel.splits = {.vocab = ranks > 1, .sequence = ranks > 1};
        config.parallel.schedule = &deferred_weights;
        const Coordinates coordinates = config.parallel.coordinates(0);
        const ParameterTable table = config.table(coordinates);
        const Schedule schedule = deferred_weights.make({}).front();
        const ModelPrograms whole =
            record_programs(config.model, table, config.programs(schedule, coordinates));
        const ChunkPrograms& chunk = whole.chunks.front();
        const std::vector<UnitCost> units = unit_costs(config);
        EXPECT_EQ(sum_of(units, &UnitCost::forward), flops_of_programs({chunk.forward}));
        EXPECT_EQ(sum_of(units, &UnitCost::input), flops_of_programs({chunk.backward.front()}));
        EXPECT_EQ(sum_of(units, &UnitCost::weight), flops_of_programs({chunk.backward.back()}));
      }
    }
  }
}

TEST(UnitCosts, AreThoseOfARank) {
  StepConfig config = small_config();
  const std::vector<UnitCost> whole = unit_costs(config);
  config.parallel.tensor = 2;
  config.parallel.splits = {.vocab = true, .sequence = true};
  const std::vector<UnitCost> part = unit_costs(config);
  ASSERT_EQ(part.size(), whole.size());
  EXPECT_EQ(part[1].output_bytes, whole[1].output_bytes / 2);
  for (const std::size_t unit : {std::size_t{1}, whole.size() - 1})
    EXPECT_NEAR(part[unit].input, whole[unit].input / 2, 0.02 * whole[unit].input);
  EXPECT_LT(100 * part[1].parameters, 52 * whole[1].parameters);
  EXPECT_LT(part[0].parameters, whole[0].parameters);
}

/// Units of blocks that are alike or differ.
std::vector<UnitCost> random_units(int layers, std::mt19937& random) {
  const auto draw = [&](int most) { return 1.0 + static_cast<int>(random() % static_cast<unsigned>(most)); };
  const auto bytes = [&](int most) { return static_cast<std::int64_t>(draw(most)); };
  const bool is_uneven = random() % 2 == 0;
  const UnitCost block{"", draw(9), draw(9), draw(9), bytes(4), 1, bytes(9)};
  std::vector<UnitCost> units = {{"", 1, 0, 1, bytes(30), 1, 0}};
  for (int layer = 0; layer < layers; ++layer) {
    units.push_back(block);
    if (is_uneven) units.back().input = draw(9);
  }
  units.push_back({"", 0, 3 * draw(9), draw(9), 1, 0, bytes(9)});
  return units;
}

/// Units of which the blocks take little of the time, so that memory decides between most cuts.
std::vector<UnitCost> units_with_light_blocks(int layers, std::mt19937& random) {
  std::vector<UnitCost> units = random_units(layers, random);
  for (UnitCost& unit : units) {
    unit.forward *= 1e-3;
    unit.input *= 1e-3;
    unit.weight *= 1e-3;
    unit.kept_bytes = static_cast<std::int64_t>(random() % 8);
  }
  units.front().forward = 3;
  units.back().input = 3;
  return units;
}

/// What the choice should minimise, from its definition.
struct Outcome {
  double step = 0.0;
  std::vector<double> memory_by_stage;
  double memory = 0.0;   ///< of the stage that needs the most
  double busiest = 0.0;  ///< work
  std::vector<int> places;
};

Outcome outcome_of(const std::vector<UnitCost>& units, const ScheduleKind& kind, const ScheduleScope& scope,
                   const std::vector<int>& places) {
  std::vector<UnitCost> chunks(places.size() + 1);
  std::size_t chunk = 0;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    while (chunk < places.size() && static_cast<std::size_t>(places[chunk]) <= unit) ++chunk;
    chunks[chunk].forward += units[unit].forward;
    chunks[chunk].input += units[unit].input;
    chunks[chunk].weight += units[unit].weight;
    chunks[chunk].parameters += units[unit].parameters;
    chunks[chunk].kept_bytes += units[unit].kept_bytes;
  }
  const std::vector<int> stages = kind.stages_of_chunks(scope);
  const auto play = [&](int micro_batches) {
    ScheduleScope own = scope;
    own.micro_batches = micro_batches;
    own.times.clear();
    for (const UnitCost& cost : chunks) own.times.push_back({cost.forward, cost.input, cost.weight});
    const std::vector<Schedule> lists = kind.make(own);
    Outcome outcome{.step = simulate(lists, own.times).makespan, .memory_by_stage = {}, .places = places};
    for (std::size_t stage = 0; stage < lists.size(); ++stage) {
      double memory = 0.0;
      double work = 0.0;
      for (std::size_t c = 0; c < chunks.size(); ++c) {
        if (stages[c] != static_cast<int>(stage)) continue;
        memory += 16.0 * static_cast<double>(chunks[c].parameters);
        work += chunks[c].forward + chunks[c].input + chunks[c].weight;
      }
      double most = memory;
      for (const Action& action : lists[stage].actions) {
        const auto kept = static_cast<double>(chunks[static_cast<std::size_t>(action.chunk)].kept_bytes);
        if (action.kind == ActionKind::forward) memory += kept;
        most = std::max(most, memory);
        if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) memory -= kept;
      }
      outcome.memory_by_stage.push_back(most);
      outcome.busiest = std::max(outcome.busiest, work);
    }
    return outcome;
  };
  const int most = 8 * scope.stages;
  const bool is_simulated = scope.micro_batches <= most || !scope.file.empty();
  Outcome outcome = play(is_simulated ? scope.micro_batches : most);
  if (!is_simulated) {
    const Outcome half = play(most / 2);
    const double times = static_cast<double>(scope.micro_batches - most) / (most - most / 2);
    outcome.step += times * (outcome.step - half.step);
    for (std::size_t stage = 0; stage < half.memory_by_stage.size(); ++stage)
      outcome.memory_by_stage[stage] +=
          times * (outcome.memory_by_stage[stage] - half.memory_by_stage[stage]);
  }
  outcome.memory = std::ranges::max(outcome.memory_by_stage);
  return outcome;
}

/// The outcomes of all cuts.
std::vector<Outcome> all_outcomes(const std::vector<UnitCost>& units, const ScheduleKind& kind,
                                  const ScheduleScope& scope) {
  std::vector<Outcome> all;
  std::vector<int> places;
  const std::function<void(int)> add_from = [&](int first) {
    if (std::ssize(places) == scope.num_chunks() - 1) {
      all.push_back(outcome_of(units, kind, scope, places));
      return;
    }
    for (int place = first; place < std::ssize(units); ++place) {
      places.push_back(place);
      add_from(place + 1);
      places.pop_back();
    }
  };
  add_from(1);
  return all;
}

/// Of the cuts within 1 % of the shortest, that with the least memory.
Outcome best_of(const std::vector<Outcome>& all) {
  const double shortest = std::ranges::min_element(all, {}, &Outcome::step)->step;
  const auto order = [&](const Outcome& outcome) {
    return std::tuple(outcome.step > 1.01 * shortest, outcome.memory, outcome.step);
  };
  return *std::ranges::min_element(all, {}, order);
}

struct Case {
  const char* kind;
  int stages;
  int chunks;  // per stage
};
constexpr std::array cases = {
    Case{"accumulate", 2, 1},  Case{"accumulate", 3, 1},    Case{"gpipe", 3, 1},
    Case{"1f1b", 1, 1},        Case{"1f1b", 2, 1},          Case{"1f1b", 3, 1},
    Case{"1f1b", 4, 1},        Case{"interleaved", 2, 2},   Case{"interleaved", 2, 3},
    Case{"interleaved", 3, 2}, Case{"zero_bubble", 2, 1},   Case{"zero_bubble", 3, 1},
    Case{"zero_bubble", 4, 1}, Case{"zero_bubble_v", 2, 2}, Case{"zero_bubble_v", 3, 2}};

const ScheduleKind& kind_of(const Case& of) {
  return find_kind(schedules(), of.kind);
}
ScheduleScope scope_of(const Case& of, int micro_batches) {
  return {.micro_batches = micro_batches, .stages = of.stages, .chunks = of.chunks};
}

TEST(ChooseCuts, AgreesWithTryingAll) {
  std::mt19937 random(45);
  for (const Case& of : cases) {
    for (int i = 0; i < 6; ++i) {
      const int chunks = of.stages * of.chunks;
      // If the lists follow the times, there are at most 200 cuts, so that all of them are simulated.
      const int layers =
          std::max(chunks - 2, 0) + static_cast<int>(random() % (kind_of(of).follows_times ? 4 : 7));
      const std::vector<UnitCost> units = random_units(layers, random);
      const std::array rounds = {1, 2, 5, 8, 11, 40};  // from 11 on extrapolated
      const ScheduleScope scope = scope_of(of, of.stages * rounds[static_cast<std::size_t>(i)]);
      SCOPED_TRACE(fmt::format("{}, {} x {} chunks, {} layers, {} micro-batches", of.kind, of.stages,
                               of.chunks, layers, scope.micro_batches));
      EXPECT_EQ(choose_cuts(units, kind_of(of), scope),
                best_of(all_outcomes(units, kind_of(of), scope)).places);
    }
  }
}

TEST(ChooseCuts, AgreesWithTryingAllIfMemoryDecides) {
  std::mt19937 random(45);
  for (const Case& of : cases) {
    for (const int rounds : {1, 3, 24}) {
      const int layers = of.stages * of.chunks + (kind_of(of).follows_times ? 1 : 4);
      const std::vector<UnitCost> units = units_with_light_blocks(layers, random);
      const ScheduleScope scope = scope_of(of, of.stages * rounds);
      SCOPED_TRACE(fmt::format("{}, {} x {} chunks, {} micro-batches", of.kind, of.stages, of.chunks,
                               scope.micro_batches));
      EXPECT_EQ(choose_cuts(units, kind_of(of), scope),
                best_of(all_outcomes(units, kind_of(of), scope)).places);
    }
  }
}

/// GPT-2's head is as much work as five blocks.
TEST(ChooseCuts, GivesTheHeadsWorkToTheOtherStages) {
  const std::vector<UnitCost> units = unit_costs(gpt2_config());
  const Case of{"1f1b", 2, 1};
  const ScheduleScope scope = scope_of(of, 8);
  EXPECT_THAT(choose_cuts(units, kind_of(of), scope), ElementsAre(10));
  const double nine = outcome_of(units, kind_of(of), scope, {10}).step;
  const double eight = outcome_of(units, kind_of(of), scope, {9}).step;
  EXPECT_NEAR(eight / nine, 1.034, 0.001);
}

TEST(ChooseCuts, LooksAtTheStepNotAtTheBusiestStage) {
  // All work of the head is in backward passes. With an equal share of the work, the stage with the head
  // would have more work than the other in these and less in forward passes, and GPipe waits for each.
  const std::vector<UnitCost> units = unit_costs(gpt2_config());
  const Case of{"gpipe", 2, 1};
  const std::vector<Outcome> all = all_outcomes(units, kind_of(of), scope_of(of, 8));
  const Outcome least = *std::ranges::min_element(all, {}, &Outcome::busiest);
  const Outcome best = best_of(all);
  EXPECT_THAT(choose_cuts(units, kind_of(of), scope_of(of, 8)), best.places);
  EXPECT_LT(best.step, least.step);
}

TEST(ChooseCuts, TakesTheMemoryIntoAccountIfStepsAreEqual) {
  std::vector<UnitCost> units(10, {.forward = 1, .input = 1, .weight = 1, .parameters = 10});
  units.front().parameters = 40;
  const Case of{"accumulate", 2, 1};
  const ScheduleScope scope = scope_of(of, 4);
  EXPECT_THAT(choose_cuts(units, kind_of(of), scope), ElementsAre(3));
  units.back().kept_bytes = 16 * 30;
  EXPECT_THAT(choose_cuts(units, kind_of(of), scope), ElementsAre(5));
  // A step that is longer by more than 1 % is not worth it.
  EXPECT_THAT(choose_cuts(units, kind_of({"1f1b", 2, 1}), scope), ElementsAre(5));
  units.front().parameters = 4000;
  EXPECT_THAT(choose_cuts(units, kind_of({"1f1b", 2, 1}), scope), ElementsAre(5));
}

/// GPipe keeps the activations of all micro-batches, also of those that are not simulated.
TEST(ChooseCuts, ExtrapolatesTheMemory) {
  std::vector<UnitCost> units(12, {.forward = 0.1, .input = 0.1, .weight = 0.1, .kept_bytes = 1});
  units.front() = {.forward = 1000, .parameters = 8};
  units.back() = {.input = 1000};
  const Case of{"gpipe", 2, 1};
  EXPECT_THAT(choose_cuts(units, kind_of(of), scope_of(of, 16)), ElementsAre(2));
  EXPECT_THAT(choose_cuts(units, kind_of(of), scope_of(of, 64)), ElementsAre(5));
}

/// The lists of a file are for one number of micro-batches.
TEST(ChooseCuts, SimulatesTheListsOfAFile) {
  std::mt19937 random(45);
  const std::vector<UnitCost> units = random_units(9, random);
  const Case of{"1f1b", 3, 1};
  ScheduleScope scope = scope_of(of, 40);
  const std::string text = schedule_text(kind_of(of).make(scope));
  scope.file = text;
  const ScheduleKind& file = find_kind(schedules(), "file");
  EXPECT_EQ(choose_cuts(units, file, scope), best_of(all_outcomes(units, file, scope)).places);
}

/// Lists that follow the times are made for the cuts whose busiest stage has the least work only.
TEST(ChooseCuts, TriesTheMostPromisingCutsOfZeroBubbleSchedules) {
  std::mt19937 random(45);
  const Case of{"zero_bubble", 4, 1};
  const ScheduleScope scope = scope_of(of, 8);
  for (int i = 0; i < 5; ++i) {
    const std::vector<UnitCost> units = units_with_light_blocks(16, random);
    std::vector<Outcome> all = all_outcomes(units, kind_of(of), scope);
    ASSERT_GT(all.size(), 500U);
    const auto order = [](const Outcome& outcome) { return std::tuple(outcome.busiest, outcome.places); };
    std::ranges::sort(all, {}, order);
    all.resize(200);
    EXPECT_EQ(choose_cuts(units, kind_of(of), scope), best_of(all).places);
  }
}

TEST(ChooseCuts, FindsAGoodCutWithoutTryingAll) {
  std::mt19937 random(45);
  for (const Case& of : cases) {
    if (of.stages == 1) continue;
    double sum = 0.0;
    constexpr int times = 20;
    for (int i = 0; i < times; ++i) {
      const int layers = of.stages * of.chunks + static_cast<int>(random() % 4);
      const std::vector<UnitCost> units = random_units(layers, random);
      const ScheduleScope scope = scope_of(of, of.stages * 4);
      const auto step_of = [&](const std::vector<int>& places) {
        return outcome_of(units, kind_of(of), scope, places).step;
      };
      const std::vector<int> found = choose_cuts(units, kind_of(of), scope, 0);
      EXPECT_EQ(found, choose_cuts(units, kind_of(of), scope, 0));
      const double ratio = step_of(found) / step_of(choose_cuts(units, kind_of(of), scope));
      EXPECT_LT(ratio, of.chunks == 1 ? 1.01 : 1.08) << of.kind << ' ' << of.stages << ' ' << of.chunks;
      sum += ratio;
    }
    EXPECT_LT(sum / times, 1.01) << of.kind << ' ' << of.stages << ' ' << of.chunks;
  }
}

TEST(ChooseCuts, SearchesIfThereAreTooManyCuts) {
  StepConfig config = gpt2_config();
  config.model = {.layers = 48, .heads = 25, .width = 1600};
  const std::vector<UnitCost> units = unit_costs(config);
  const Case of{"1f1b", 8, 1};
  const std::vector<int> places = choose_cuts(units, kind_of(of), scope_of(of, 64));
  const Outcome outcome = outcome_of(units, kind_of(of), scope_of(of, 64), places);
  const double work =
      sum_of(units, &UnitCost::forward) + sum_of(units, &UnitCost::input) + sum_of(units, &UnitCost::weight);
  EXPECT_LT(outcome.busiest, 1.15 * work / 8);
}

std::vector<UnitCost> sample_profile() {
  std::vector<UnitCost> units = unit_costs(small_config());
  for (UnitCost& unit : units) {
    unit.forward = 1.0 / 3.0;
    unit.input *= 1e-13;
    unit.weight = 0.1;
  }
  return units;
}

void expect_same(const std::vector<UnitCost>& left, const std::vector<UnitCost>& right) {
  ASSERT_EQ(left.size(), right.size());
  const auto values = [](const UnitCost& unit) {
    return std::tuple(unit.name, unit.forward, unit.input, unit.weight, unit.parameters, unit.output_bytes,
                      unit.kept_bytes);
  };
  for (std::size_t i = 0; i < left.size(); ++i) EXPECT_EQ(values(left[i]), values(right[i]));
}

/// The message of the Error that `work` throws, or "no error".
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "no error";
}

TEST(UnitProfile, IsReadAsWritten) {
  const std::vector<UnitCost> units = sample_profile();
  const std::string text = unit_profile_text(units);
  EXPECT_TRUE(text.starts_with("unit,forward,input,weight,parameters,output_bytes,kept_bytes\nembedding,"));
  expect_same(parse_unit_profile(text), units);
  check_profile(parse_unit_profile(text), unit_costs(small_config()));
}

TEST(UnitProfile, MayBeEdited) {
  const std::vector<UnitCost> expected = {{"embedding", 0, 1.5, 2e-3, 1000, 64, 0},
                                          {"head", 0, 1, 0, 2, 0, 5}};
  expect_same(
      parse_unit_profile("\xEF\xBB\xBF\r\n unit, forward,input ,weight,parameters,output_bytes,kept_bytes\r\n"
                         "\t\r\n embedding , 0,1.5, 2e-3,1e3,64,0 \r\n\nhead,0,+1,0,2,0,5"),
      expected);
}

TEST(UnitProfile, NamesTheLineOfAnError) {
  const std::string header = "unit,forward,input,weight,parameters,output_bytes,kept_bytes\n";
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "no profile"},
           {"\n\n", "no profile"},
           {"\nembedding,0,0,0,0,0,0\n", "line 2: the header is not unit,forward,"},
           {header + "head,1,2,3\n", "line 2: 4 values, not 7"},
           {header + "\nhead,1,2,x,4,5,6\n", "line 3: weight = \"x\" is not a number"},
           {header + "head,1,,3,4,5,6\n", "line 2: input = \"\" is not a number"},
           {header + "head,-1,2,3,4,5,6\n", "line 2: forward = \"-1\" is negative"},
           {header + "head,nan,2,3,4,5,6\n", "line 2: forward = \"nan\" is not a finite number"},
           {header + "head,1,2,3,4.5,5,6\n", "line 2: parameters = \"4.5\" is not an integer"},
           {header + "head,1,2,3,4,-5,6\n", "line 2: output_bytes = \"-5\" is negative"},
           {header + "head,1,2,3,4,5,1e30\n", "line 2: kept_bytes = \"1e30\" does not fit 64 bits"}}) {
    EXPECT_THAT(error_of([&] { parse_unit_profile(text); }), HasSubstr(message)) << text;
  }
}

TEST(UnitProfile, IsRefusedForAnotherModelOrMicroBatch) {
  const std::vector<UnitCost> profile = sample_profile();
  const auto error_for = [&](const auto& change) {
    StepConfig config = small_config();
    change(config);
    return error_of([&] { check_profile(profile, unit_costs(config)); });
  };
  EXPECT_EQ(error_for([](StepConfig& config) { config.train.recompute = Recompute::block; }), "no error");
  EXPECT_THAT(error_for([](StepConfig& config) { config.model.layers = 4; }),
              HasSubstr("5 units, but the model has 6"));
  EXPECT_THAT(error_for([](StepConfig& config) { config.model.vocab = 999; }), HasSubstr("embedding"));
  EXPECT_THAT(error_for([](StepConfig& config) { config.model.width = 128; }), HasSubstr("parameters"));
  EXPECT_THAT(error_for([](StepConfig& config) { config.train.micro_batch = 2; }),
              HasSubstr("output_bytes of embedding is 32768, not 16384"));
  std::vector<UnitCost> swapped = profile;
  std::swap(swapped[0], swapped[1]);
  EXPECT_THAT(error_of([&] { check_profile(swapped, profile); }),
              HasSubstr("unit 1 of the profile is \"block 0\""));
}

TEST(UnitProfile, IsSummedByChunk) {
  const std::vector<UnitCost> units = {{"embedding", 1, 0, 2, 10, 8, 3},
                                       {"block 0", 10, 20, 30, 5, 8, 7},
                                       {"block 1", 11, 21, 31, 5, 8, 7},
                                       {"head", 0, 50, 60, 1, 0, 9}};
  const ModelCuts cuts{.chunks = 3, .places = {1, 3}};
  const std::vector<PassTimes> times = pass_times(units, cuts);
  ASSERT_EQ(times.size(), 3U);
  EXPECT_EQ(times[0].forward, 1);
  EXPECT_EQ(times[1].input, 41);
  EXPECT_EQ(times[1].weight, 61);
  EXPECT_EQ(times[2].backward(), 110);
  EXPECT_EQ(chunk_costs(units, cuts)[1].kept_bytes, 14);
  EXPECT_EQ(pass_times(units, {}).front().forward, 22);
}

/// A stage of two ranks gets twice the work of a stage of one, however long a step is.
TEST(Cuts, DivideTheWorkAmongReplicas) {
  std::vector<UnitCost> units(14, UnitCost{.forward = 1.0, .input = 1.0, .weight = 1.0, .kept_bytes = 1});
  units.front().forward = units.front().input = units.front().weight = 0.0;
  units.back().forward = units.back().input = units.back().weight = 5.0;
  for (const int micro_batches : {2, 32, 512}) {
    for (const std::vector<int>& replicas : {std::vector<int>{2, 1}, {1, 2}, {1, 1}}) {
      const std::vector<int> cut =
          choose_cuts(units, find_kind(schedules(), "pipedream"),
                      {.micro_batches = micro_batches, .stages = 2, .replicas = replicas});
      const double first = (cut.front() - 1) / static_cast<double>(replicas[0]);
      const double last = (13 - cut.front() + 5) / static_cast<double>(replicas[1]);
      const double least = replicas[0] == 2 ? 6.0 : replicas[1] == 2 ? 6.0 : 9.0;
      EXPECT_EQ(std::max(first, last), least) << testing::PrintToString(replicas) << ", " << micro_batches;
    }
  }
}

}  // namespace
}  // namespace mylos
