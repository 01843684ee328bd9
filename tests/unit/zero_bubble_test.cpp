// SPDX-License-Identifier: BSD-3-Clause
// The zero-bubble schedules: makespan and memory of their lists, played by a small simulation, and the order
// of passes.
#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/schedule/schedule.hpp"

namespace mylos {
namespace {

using testing::Each;
using testing::IsEmpty;
using testing::Le;
using enum ActionKind;

const ScheduleKind& kind_of(std::string_view name) {
  const auto has_name = [&](const ScheduleKind* kind) { return kind->name == name; };
  return **std::ranges::find_if(schedules(), has_name);
}

ScheduleScope scope_of(const ScheduleKind& kind, int stages, int micro_batches, int in_flight = 0) {
  return {.micro_batches = micro_batches, .stages = stages, .chunks = kind.chunks, .in_flight = in_flight};
}

/// What a simulation of the lists of all stages finds.
struct Played {
  double makespan = 0.0;
  std::vector<int> most_kept;         // activations, by stage
  std::vector<std::string> problems;  // passes that are missing, doubled, or in the wrong order or place
};

/// Runs every stage's passes in the order of its list, each as soon as its inputs exist.
Played play(const ScheduleKind& kind, const ScheduleScope& scope) {
  const std::vector<Schedule> lists = kind.make(scope);
  const std::vector<int> places = kind.stages_of_chunks(scope);
  const int last = static_cast<int>(places.size()) - 1;
  Played played;
  const auto report = [&](std::string_view problem, std::size_t stage, const Action& action) {
    played.problems.push_back(fmt::format("stage {}: {} {} of chunk {} {}", stage, name_of(action.kind),
                                          action.micro_batch, action.chunk, problem));
  };
  using Pass = std::array<int, 3>;  // kind, chunk, micro-batch
  const auto pass_of = [](ActionKind pass, int chunk, int micro_batch) {
    return Pass{static_cast<int>(pass), chunk, micro_batch};
  };

  std::map<Pass, double> ends;
  std::vector<std::size_t> next(lists.size());
  std::vector<double> clocks(lists.size());
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (std::size_t stage = 0; stage < lists.size(); ++stage) {
      for (; next[stage] < lists[stage].actions.size(); ++next[stage]) {
        const Action& action = lists[stage].actions[next[stage]];
        const auto [pass, micro_batch, chunk] = std::tuple(action.kind, action.micro_batch, action.chunk);
        if (!is_of_micro_batch(pass)) continue;
        std::vector<Pass> inputs;
        if (pass == forward && chunk > 0) inputs.push_back(pass_of(forward, chunk - 1, micro_batch));
        if (pass == backward_input) inputs.push_back(pass_of(forward, chunk, micro_batch));
        if (pass == backward_input && chunk < last) inputs.push_back(pass_of(pass, chunk + 1, micro_batch));
        if (pass == backward_weight) inputs.push_back(pass_of(backward_input, chunk, micro_batch));
        if (!std::ranges::all_of(inputs, [&](const Pass& input) { return ends.contains(input); })) break;
        double begin = clocks[stage];
        for (const Pass& input : inputs) begin = std::max(begin, ends.at(input));
        clocks[stage] = begin + scope.times_of(chunk).of(pass);
        if (!ends.emplace(pass_of(pass, chunk, micro_batch), clocks[stage]).second) {
          report("occurs twice", stage, action);
        }
        has_moved = true;
      }
    }
  }
  played.makespan = std::ranges::max(clocks);
  if (ends.size() != 3 * places.size() * static_cast<std::size_t>(scope.micro_batches)) {
    played.problems.emplace_back("passes are missing or wait for ever");
  }

  for (std::size_t stage = 0; stage < lists.size(); ++stage) {
    const std::vector<Action>& actions = lists[stage].actions;
    std::map<std::pair<ActionKind, int>, int> done;  // micro-batches, by kind and chunk
    int kept = 0;
    int most_kept = 0;
    for (const Action& action : actions) {
      if (!is_of_micro_batch(action.kind)) continue;
      const int chunk = action.chunk;
      if (places[static_cast<std::size_t>(chunk)] != static_cast<int>(stage)) {
        report("is on the wrong stage", stage, action);
      }
      if (done[{action.kind, chunk}]++ != action.micro_batch) report("is out of order", stage, action);
      if (action.kind == backward_weight) {
        for (int later = chunk + 1; later <= last; ++later) {
          const bool is_here = places[static_cast<std::size_t>(later)] == static_cast<int>(stage);
          if (is_here && done[{backward_weight, later}] <= action.micro_batch) {
            report("precedes that of a later chunk", stage, action);
          }
        }
      }
      if (action.kind == forward) most_kept = std::max(most_kept, ++kept);
      if (action.kind == backward_weight) --kept;
    }
    played.most_kept.push_back(most_kept);
    const bool has_end =
        actions.size() >= 2 && actions.end()[-2] == Action{reduce} && actions.back() == Action{step};
    if (!has_end || lists[stage].micro_batches != scope.micro_batches || lists[stage].chunks != last + 1) {
      played.problems.push_back(fmt::format("stage {}: wrong end or counts", stage));
    }
  }
  return played;
}

double work_of_busiest_stage(const ScheduleKind& kind, const ScheduleScope& scope) {
  std::vector<double> work(static_cast<std::size_t>(scope.stages));
  int chunk = 0;
  for (const int stage : kind.stages_of_chunks(scope)) {
    const PassTimes times = scope.times_of(chunk++);
    work[static_cast<std::size_t>(stage)] += scope.micro_batches * (times.forward + times.backward());
  }
  return std::ranges::max(work);
}

class ZeroBubble : public testing::TestWithParam<const char*> {
 protected:
  const ScheduleKind& kind_ = kind_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Kinds, ZeroBubble, testing::Values("zero_bubble", "zero_bubble_v"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ZeroBubbleFigures, HasTheFiguresOfH1) {
  const ScheduleKind& kind = kind_of("zero_bubble");
  for (int p = 2; p <= 8; ++p) {
    for (int m = 1; m <= 64; ++m) {
      SCOPED_TRACE(fmt::format("p = {}, m = {}", p, m));
      const Played played = play(kind, scope_of(kind, p, m));
      EXPECT_THAT(played.problems, IsEmpty());
      EXPECT_EQ(played.makespan, 2 * m + p - 1 + std::max(m, p));
      EXPECT_THAT(played.most_kept, Each(Le(std::min(p, m))));
    }
  }
}

TEST(ZeroBubbleFigures, HasTheFiguresOfV) {
  const ScheduleKind& kind = kind_of("zero_bubble_v");
  for (int p = 2; p <= 8; ++p) {
    for (int m = 1; m <= 64; ++m) {
      SCOPED_TRACE(fmt::format("p = {}, m = {}", p, m));
      const Played played = play(kind, scope_of(kind, p, m));
      EXPECT_THAT(played.problems, IsEmpty());
      EXPECT_THAT(played.most_kept, Each(Le(2 * std::min(p, m))));
      if (m >= p) {
        EXPECT_GE(played.makespan, 6 * m + p - 1);
        EXPECT_LE(played.makespan, 6 * m + p - 1 + (p <= 4 ? 0 : 3));
      } else {
        // A micro-batch takes 4p and one weight gradient; every further one adds at most its own passes.
        EXPECT_LE(played.makespan, 4 * p + 1 + 6 * (m - 1));
      }
    }
  }
}

// Sums of such times are rounded: passes that end together may seem not to.
TEST(ZeroBubbleFigures, DoNotDependOnTheUnitOfTime) {
  for (const char* name : {"zero_bubble", "zero_bubble_v"}) {
    const ScheduleKind& kind = kind_of(name);
    for (int p = 2; p <= 8; ++p) {
      ScheduleScope scope = scope_of(kind, p, 37);
      const auto makespan_in = [&](double unit) {
        scope.times.assign(static_cast<std::size_t>(scope.num_chunks()), {unit, 2 * unit, 3 * unit});
        return play(kind, scope).makespan / unit;
      };
      const double expected = makespan_in(1.0);
      for (const double unit : {0.1, 1e-3, 1.0 / 3.0, 7e9}) {
        EXPECT_NEAR(makespan_in(unit), expected, 1e-9 * expected) << name << ' ' << unit << ' ' << p;
      }
    }
  }
}

// GPT-2 124M on two ranks: the embedding and nine blocks, then three blocks and the head, which is as much
// work as five blocks, all of it done in backward_input.
TEST(ZeroBubbleFigures, GainsWithUnevenStages) {
  const ScheduleKind& kind = kind_of("zero_bubble");
  ScheduleScope scope = scope_of(kind, 2, 8);
  scope.times = {{9, 9, 9}, {3, 13, 3}};
  EXPECT_GE(work_of_busiest_stage(kind, scope) / play(kind, scope).makespan, 0.94);
  scope.in_flight = 4;
  EXPECT_GE(work_of_busiest_stage(kind, scope) / play(kind, scope).makespan, 0.99);
}

TEST(ZeroBubbleFigures, TakesPassesWithoutWork) {
  for (const char* name : {"zero_bubble", "zero_bubble_v"}) {
    const ScheduleKind& kind = kind_of(name);
    ScheduleScope scope = scope_of(kind, 3, 7);
    scope.times.assign(static_cast<std::size_t>(scope.num_chunks()), {1, 1, 1});
    scope.times.front() = {0, 0, 0};
    scope.times.back() = {0, 2, 0};
    EXPECT_THAT(play(kind, scope).problems, IsEmpty()) << name;
  }
}

TEST_P(ZeroBubble, IsLegalWithinMemoryForAllTimes) {
  std::mt19937 random(45);
  const auto draw = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  for (int i = 0; i < 200; ++i) {
    ScheduleScope scope = scope_of(kind_, draw(1, 9), draw(1, 40));
    for (int chunk = 0; chunk < scope.num_chunks(); ++chunk) {
      scope.times.push_back({0.01 * draw(1, 300), 0.01 * draw(1, 500), 0.01 * draw(0, 300)});
    }
    const int p = scope.stages;
    SCOPED_TRACE(fmt::format("{}: p = {}, m = {}", i, p, scope.micro_batches));
    double before = 0.0;
    for (const int in_flight :
         {1, std::max(1, p / 2), p, p + 1, 2 * p, std::max(2 * p, scope.micro_batches)}) {
      scope.in_flight = in_flight;
      const Played played = play(kind_, scope);
      EXPECT_THAT(played.problems, IsEmpty());
      EXPECT_THAT(played.most_kept, Each(Le(kind_.chunks * std::min(in_flight, scope.micro_batches))));
      EXPECT_GE(played.makespan, work_of_busiest_stage(kind_, scope) * (1 - 1e-12));
      // With less memory than usual another list is made, which need not be longer.
      if (in_flight > p) {
        EXPECT_LE(played.makespan, before * (1 + 1e-8)) << in_flight;
      }
      if (in_flight >= p) before = played.makespan;
    }
  }
}

TEST_P(ZeroBubble, TakesTimeInProportionToThePasses) {
  ScheduleScope scope = scope_of(kind_, 8, 4096);
  for (int chunk = 0; chunk < scope.num_chunks(); ++chunk)
    scope.times.push_back({1.0 + 0.1 * chunk, 1.5, 0.9});
  const Played played = play(kind_, scope);
  EXPECT_THAT(played.problems, IsEmpty());
  EXPECT_LE(played.makespan, 1.02 * work_of_busiest_stage(kind_, scope));
}

TEST_P(ZeroBubble, MakesTheSameListAgain) {
  ScheduleScope scope = scope_of(kind_, 5, 23);
  for (int chunk = 0; chunk < scope.num_chunks(); ++chunk) scope.times.push_back({1.1 * chunk + 1, 1.3, 0.7});
  const std::vector<Schedule> once = kind_.make(scope);
  const std::vector<Schedule> again = kind_.make(scope);
  for (std::size_t stage = 0; stage < once.size(); ++stage) {
    EXPECT_EQ(once[stage].actions, again[stage].actions);
  }
}

}  // namespace
}  // namespace mylos
