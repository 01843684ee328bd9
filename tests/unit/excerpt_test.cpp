// SPDX-License-Identifier: BSD-3-Clause
// A step of many micro-batches is planned from an excerpt of a few.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/engine/rank_program.hpp"
#include "parallel/plan/run_plan.hpp"
#include "tests/parallel/mini_trainer.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;

constexpr int many = 65536;

TEST(Repetition, GivesThePlacesOfElements) {
  const Repetition repetition{.begin = 1, .end = 3, .times = 3};
  std::vector<std::size_t> places;
  for (std::size_t number = 0; number < 9; ++number) places.push_back(repetition.place(number));
  EXPECT_THAT(places, ElementsAre(0, 1, 2, 1, 2, 1, 2, 3, 4));
  EXPECT_EQ(Repetition().place(5), 5U);
}

TEST(ScheduleExcerpt, IsTheSameStep) {
  for (const int micro_batches : {1, 2, 5, 6, 7, 12, many}) {
    SCOPED_TRACE(micro_batches);
    const Schedule all = schedules().front()->make({.micro_batches = micro_batches}).front();
    const auto [few, repeated] = excerpt_of(all);
    EXPECT_EQ(few.micro_batches, std::min(micro_batches, 5));
    ASSERT_EQ(few.actions.size() + (repeated.times - 1) * (repeated.end - repeated.begin),
              all.actions.size());
    for (std::size_t i = 0; i < all.actions.size(); ++i) {
      const std::size_t place = repeated.place(i);
      ASSERT_EQ(few.actions[place].kind, all.actions[i].kind);
      if (is_backward(all.actions[i].kind)) {
        ASSERT_EQ(few.is_last(place), all.is_last(i));
      }
    }
  }
}

TEST(ScheduleExcerpt, IsTheWholeScheduleIfMicroBatchesInterleave) {
  constexpr int micro_batches = 9;
  Schedule schedule{.actions = {}, .micro_batches = micro_batches};
  for (const ActionKind kind : {ActionKind::forward, ActionKind::backward}) {
    for (int m = 0; m < micro_batches; ++m) schedule.actions.push_back({kind, m});
  }
  const auto [few, repeated] = excerpt_of(schedule);
  EXPECT_EQ(few.actions, schedule.actions);
  EXPECT_EQ(repeated.times, 1U);
}

RunConfig config_of(std::int64_t layers, bool tied, std::int64_t micro_batches) {
  ModelConfig model;
  model.layers = layers;
  model.heads = 2;
  model.width = 32;
  model.context = 16;
  model.vocab = 257;
  model.tied = tied;
  constexpr std::int64_t ranks = 4;
  RunConfig config = mini_config(model, ranks * micro_batches, 16, ranks, micro_batches);
  set_exchange(config, "zero3", ranks);
  return config;
}

/// The same actions, but with the micro-batches numbered from the last to the first, which no excerpt stands
/// for.
const ScheduleKind written_out{.name = "written out", .doc = "", .make = [](const ScheduleScope& scope) {
                                 const int micro_batches = scope.micro_batches;
                                 Schedule schedule =
                                     schedules().front()->make({.micro_batches = micro_batches}).front();
                                 for (Action& action : schedule.actions) {
                                   if (is_of_micro_batch(action.kind))
                                     action.micro_batch = micro_batches - 1 - action.micro_batch;
                                 }
                                 return std::vector{schedule};
                               }};

/// The entries that an action's pass has in addition to its program's.
std::vector<std::string> inserted_into(const RankProgram& rank, std::size_t action) {
  std::vector<std::string> texts;
  for_each_entry(rank.pass_of(action), rank.pool(), [&](const Entry& entry, const EntryPlace& place) {
    if (!place.is_inserted) return;
    std::string text = fmt::format("{}:", place.index);
    std::visit(
        [&]<class Op>(const Op& op) {
          text += Op::name;
          Op::operands(op, [&](const char* name, const TensorRef& tensor, Access, const auto&...) {
            if (!tensor) return;
            const Place at = place_of(tensor);
            text += fmt::format(" {} {} + {} ({})", name, rank.storages().at(at.storage).name, at.offset,
                                tensor.size());
          });
        },
        entry.operation);
    texts.push_back(text);
  });
  return texts;
}

using Key = std::tuple<CommOperation, std::int64_t, AxisSet>;

std::map<Key, std::size_t> calls_of(const RankProgram& rank) {
  std::map<Key, std::size_t> calls;
  rank.for_each_step_entry([&](const Action&, const Entry& entry, std::size_t times) {
    if (const auto call = listed_call(entry)) calls[{call->operation, call->count, call->group}] += times;
  });
  return calls;
}

TEST(RankProgram, IsTheSameForTheExcerptAndForAllMicroBatches) {
  for (const std::int64_t layers : {1, 2, 5}) {
    for (const bool tied : {true, false}) {
      for (const std::int64_t micro_batches : {4, 6, 7, 15}) {
        RunConfig config = config_of(layers, tied, micro_batches);
        for (const ExchangeKind* exchange : exchanges()) {
          set_exchange(config, exchange->name, exchange->shards ? 4 : 1);
          for (const bool reshard : {true, false}) {
            for (const std::int64_t prefetch : {0, 1, 2, 3, 5, 8, 11, 12, 13, 1000}) {
              SCOPED_TRACE(fmt::format("{} layers, tied {}, {} micro-batches, {}, reshard {}, prefetch {}",
                                       layers, tied, micro_batches, exchange->name, reshard, prefetch));
              config.parallel.values.set("parallel.reshard", reshard);
              config.parallel.values.set("parallel.prefetch", prefetch);
              config.parallel.schedule = schedules().front();
              const RankProgram few(config, config.parallel.coordinates(0));
              config.parallel.schedule = &written_out;
              const RankProgram all(config, config.parallel.coordinates(0));
              for (std::size_t action = 0; action < all.schedule().actions.size(); ++action)
                ASSERT_EQ(inserted_into(few, action), inserted_into(all, action)) << action;
              EXPECT_EQ(calls_of(few), calls_of(all));
              EXPECT_EQ(few.places().arenas(), all.places().arenas());
              if (exchange->name != std::string_view("zero3")) break;
            }
            if (exchange->name != std::string_view("zero3")) break;
          }
        }
      }
    }
  }
}

/// The first passes read one unit each, in order.
TEST(RankProgram, GathersWeightsAsManyPassesAheadAsPrefetchSays) {
  RunConfig config = config_of(3, false, 1);
  for (const int prefetch : {0, 1, 2}) {
    SCOPED_TRACE(prefetch);
    config.parallel.values.set("parallel.prefetch", prefetch);
    const RankProgram rank(config, config.parallel.coordinates(0));
    int gathered = 0;
    int block = -1;
    for_each_entry(rank.pass_of(0), rank.pool(), [&](const Entry& entry, const EntryPlace& place) {
      if (!place.is_inserted && entry.block != block) {
        block = entry.block;
        // The head has no forward pass, but its weights may be gathered for the backward pass.
        EXPECT_EQ(gathered, std::min(block + prefetch + 1, rank.table().num_units())) << block;
      }
      const auto* gather = std::get_if<AllGatherCall>(&entry.operation);
      if (gather == nullptr) return;
      EXPECT_EQ(rank.storages().at(place_of(gather->output).storage).unit, gathered);
      ++gathered;
    });
  }
}

TEST(Plan, DoesNotGrowWithAccumulation) {
  const RunConfig few = config_of(2, true, 6);
  const RunConfig all = config_of(2, true, many);
  EXPECT_EQ(RankProgram(few, few.parallel.coordinates(0)).pool().size(),
            RankProgram(all, all.parallel.coordinates(0)).pool().size());
  EXPECT_EQ(make_plan(all).memory, make_plan(few).memory);
}

/// Each micro-batch beyond the fourth adds the same number of calls of each kind.
TEST(Plan, CountsTheCallsOfAllMicroBatches) {
  for (const std::int64_t tensor : {1, 2}) {
    const auto calls = [&](std::int64_t micro_batches) {
      RunConfig config = config_of(3, true, micro_batches);
      config.parallel.tensor = tensor;
      std::map<std::pair<std::string, CommOperation>, std::int64_t> counts;
      for (const TrafficRow& row : make_plan(config).traffic)
        counts[{row.axis, row.operation}] = static_cast<std::int64_t>(row.calls);
      return counts;
    };
    const auto four = calls(4);
    const auto five = calls(5);
    for (const std::int64_t micro_batches : {6, 7, 100, many}) {
      for (const auto& [key, count] : calls(micro_batches))
        EXPECT_EQ(count, four.at(key) + (micro_batches - 4) * (five.at(key) - four.at(key))) << key.first;
    }
  }
}

}  // namespace
}  // namespace mylos
