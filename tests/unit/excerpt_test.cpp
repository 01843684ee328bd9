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

#include "parallel/engine/unit_events.hpp"
#include "parallel/exchange/zero_layout.hpp"
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
    const Schedule all = schedules().front()->make(micro_batches);
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

UnitEvents events_of(const RunConfig& config, const ParameterTable& table) {
  const Schedule schedule = config.parallel.schedule->make(static_cast<int>(config.train.accumulation));
  return unit_events_of(
      schedule, record_programs(config.model, table, config.programs(schedule, config.parallel.first())));
}

/// All events, with the repeated ones written out.
UnitEventList expand_repetition(const UnitEventList& few) {
  const auto [begin, end, times] = few.repeated;
  const auto visit_of = [&](std::size_t event) { return std::get<UnitAcquisition>(few.events[event]).visit; };
  const int visits = end > begin ? visit_of(end) - visit_of(begin) : 0;
  UnitEventList all;
  const auto add = [&](std::size_t from, std::size_t to, std::size_t micro_batches_later) {
    for (std::size_t i = from; i < to; ++i) {
      UnitEvent event = few.events[i];
      if (auto* acquired = std::get_if<UnitAcquisition>(&event)) {
        acquired->visit += static_cast<int>(micro_batches_later) * visits;
        acquired->micro_batch += static_cast<int>(micro_batches_later);
      }
      all.events.push_back(event);
    }
  };
  add(0, begin, 0);
  for (std::size_t i = 0; i < times; ++i) add(begin, end, i);
  add(end, few.events.size(), times - 1);
  return all;
}

using Key = std::tuple<CommOperation, std::int64_t, DType>;

std::map<Key, std::size_t> counted(const std::vector<PlannedCall>& calls) {
  std::map<Key, std::size_t> counts;
  for (const PlannedCall& call : calls) counts[{call.operation, call.count, call.dtype}] += call.times;
  return counts;
}

/// The largest number of elements that are under way at the same time.
std::int64_t most_under_way(const std::vector<PlannedCall>& calls) {
  std::int64_t most = 0;
  std::int64_t sum = 0;
  std::multimap<std::size_t, std::int64_t> counts;  // by PlannedCall::until
  for (std::size_t i = 0; i < calls.size(); ++i) {
    while (!counts.empty() && counts.begin()->first <= i) {
      sum -= counts.begin()->second;
      counts.erase(counts.begin());
    }
    counts.emplace(calls[i].until, calls[i].count);
    sum += calls[i].count;
    most = std::max(most, sum);
  }
  return most;
}

void expect_same(const ZeroLayout& few, const ZeroLayout& all) {
  EXPECT_EQ(few.gathered_size, all.gathered_size);
  EXPECT_EQ(few.full_gradient_size, all.full_gradient_size);
  EXPECT_EQ(counted(few.calls), counted(all.calls));
  EXPECT_EQ(most_under_way(few.calls), most_under_way(all.calls));
  const ZeroLayout::Sequence& seen = few.sequences.front();
  const ZeroLayout::Sequence& expected = all.sequences.front();
  const auto gathers_at = [](const ZeroLayout::Sequence& sequence, std::size_t acquisition) {
    std::vector<std::pair<int, std::int64_t>> gathers;
    for (const auto& gather :
         std::ranges::equal_range(sequence.gathers, acquisition, {}, &ZeroLayout::Gather::start))
      gathers.emplace_back(gather.unit, gather.offset);
    return gathers;
  };
  for (std::size_t i = 0; i < expected.gradients_of.size(); ++i) {
    const std::size_t place = seen.acquisitions.place(i);
    ASSERT_LT(place, seen.gradients_of.size());
    ASSERT_EQ(seen.gradients_of[place], expected.gradients_of[i]) << i;
    ASSERT_EQ(gathers_at(seen, place), gathers_at(expected, i)) << i;
  }
  for (std::size_t i = 0; i < expected.is_last.size(); ++i)
    ASSERT_EQ(seen.is_last.at(seen.completions.place(i)), expected.is_last[i]) << i;
}

TEST(ZeroLayout, IsTheSameForTheExcerptAndForAllMicroBatches) {
  for (const std::int64_t layers : {1, 2, 5}) {
    for (const bool tied : {true, false}) {
      for (const std::int64_t micro_batches : {4, 6, 7, 15}) {
        const RunConfig config = config_of(layers, tied, micro_batches);
        const ParameterTable table = config.table(config.parallel.first());
        ExchangeScope scope{.table = table, .coordinates = config.parallel.first()};
        scope.events = events_of(config, table);
        ExchangeScope whole = scope;
        whole.events.front() = expand_repetition(scope.events.front());
        for (const ZeroStage stage :
             {ZeroStage::optimizer_states, ZeroStage::gradients, ZeroStage::parameters}) {
          for (const bool reshard : {true, false}) {
            for (const std::int64_t prefetch : {0, 1, 2, 3, 5, 8, 11, 12, 13, 1000}) {
              SCOPED_TRACE(
                  fmt::format("{} layers, tied {}, {} micro-batches, stage {}, reshard {}, prefetch {}",
                              layers, tied, micro_batches, static_cast<int>(stage), reshard, prefetch));
              const ZeroConfig zero{.stage = stage, .prefetch = prefetch, .reshard = reshard};
              expect_same({zero, scope}, {zero, whole});
              if (HasFatalFailure()) return;
              if (stage != ZeroStage::parameters) break;
            }
          }
        }
      }
    }
  }
}

/// The first passes read one unit each, in order.
TEST(ZeroLayout, GathersWeightsAsManyPassesAheadAsPrefetchSays) {
  const RunConfig config = config_of(3, false, 1);
  const ParameterTable table = config.table(config.parallel.first());
  ExchangeScope scope{.table = table, .coordinates = config.parallel.first()};
  scope.events = events_of(config, table);
  for (const int prefetch : {0, 1, 2}) {
    SCOPED_TRACE(prefetch);
    const ZeroLayout layout({.stage = ZeroStage::parameters, .prefetch = prefetch}, scope);
    for (int unit = 0; unit < table.num_units(); ++unit) {
      const ZeroLayout::Gather& gather = layout.sequences.front().gathers.at(static_cast<std::size_t>(unit));
      EXPECT_EQ(gather.unit, unit);
      EXPECT_EQ(gather.start, static_cast<std::size_t>(std::max(unit - prefetch, 0)));
    }
  }
}

TEST(Plan, DoesNotGrowWithAccumulation) {
  const RunConfig few = config_of(2, true, 6);
  const RunConfig all = config_of(2, true, many);
  const ParameterTable table = few.table(few.parallel.first());
  const UnitEvents of_few = events_of(few, table);
  const UnitEvents of_all = events_of(all, table);
  for (std::size_t i = 0; i < num_unit_sequences; ++i)
    EXPECT_EQ(of_all[i].events.size(), of_few[i].events.size());
  EXPECT_EQ(of_all.front().repeated.times, many - 4U);
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
