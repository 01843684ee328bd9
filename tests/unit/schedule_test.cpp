// SPDX-License-Identifier: BSD-3-Clause
// Schedules as data: slots of activations, overlapping steps, and the problems that the validator finds.
#include "parallel/schedule/schedule.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/schedule/problems.hpp"
#include "tests/support/test_schedules.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using enum ActionKind;

/// The slots that the passes of the first `steps` steps take.
std::vector<int> slots_of(const Schedule& schedule, std::int64_t steps = 1) {
  SlotAssignment assignment(schedule);
  std::vector<int> slots;
  for (std::int64_t step = 1; step <= steps; ++step) {
    schedule.for_each_action(step, step > 1, steps, [&](const Occurrence& occurrence) {
      if (!is_of_micro_batch(schedule.actions[occurrence.index].kind)) return;
      slots.push_back(assignment.of(occurrence));
      assignment.finish(occurrence);
    });
  }
  return slots;
}

/// The actions that a step causes, as "kind micro-batch/step".
std::vector<std::string> actions_of(const Schedule& schedule, std::int64_t step, bool is_begun,
                                    std::int64_t last) {
  std::vector<std::string> texts;
  schedule.for_each_action(step, is_begun, last, [&](const Occurrence& occurrence) {
    const Action& action = schedule.actions[occurrence.index];
    texts.push_back(fmt::format("{} {}/{}", name_of(action.kind), action.micro_batch, occurrence.step));
  });
  return texts;
}

Schedule of(std::vector<Action> actions, int micro_batches, int chunks = 1) {
  return {.actions = std::move(actions), .micro_batches = micro_batches, .chunks = chunks};
}

std::vector<std::string> find_problems(const Schedule& schedule) {
  return mylos::find_problems({&schedule, 1});
}

TEST(Schedule, AccumulatesInOneSlot) {
  const Schedule schedule = schedules().front()->make({.micro_batches = 3}).front();
  EXPECT_THAT(actions_of(schedule, 5, false, 9),
              ElementsAre("forward 0/5", "backward 0/5", "forward 1/5", "backward 1/5", "forward 2/5",
                          "backward 2/5", "reduce 0/5", "step 0/5"));
  EXPECT_THAT(slots_of(schedule), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(find_problems(schedule), IsEmpty());
}

TEST(Schedule, GivesASlotToEachMicroBatchInFlight) {
  // One forward, one backward, with two micro-batches in flight.
  const Schedule alternating = of({{forward, 0},
                                   {forward, 1},
                                   {backward, 0},
                                   {forward, 2},
                                   {backward, 1},
                                   {forward, 3},
                                   {backward, 2},
                                   {backward, 3},
                                   {reduce},
                                   {step}},
                                  4);
  EXPECT_THAT(slots_of(alternating), ElementsAre(0, 1, 0, 0, 1, 1, 0, 1));
  EXPECT_THAT(find_problems(alternating), IsEmpty());
  // All forward, then all backward.
  const Schedule all = of({{forward, 0},
                           {forward, 1},
                           {forward, 2},
                           {backward, 2},
                           {backward, 1},
                           {backward, 0},
                           {reduce},
                           {step}},
                          3);
  EXPECT_THAT(slots_of(all), ElementsAre(0, 1, 2, 2, 1, 0));
  // A slot is free after the weight gradients.
  const Schedule divided = deferred_weights.make({.micro_batches = 2}).front();
  EXPECT_THAT(slots_of(divided), ElementsAre(0, 0, 1, 1, 0, 1));
  EXPECT_THAT(find_problems(divided), IsEmpty());
}

Schedule overlapping() {
  Schedule schedule = of({{forward, 0, 0, 1}, {backward, 0}, {reduce}, {step}}, 1);
  schedule.rules = {{.micro_batches = 1, .delay = 1}};
  return schedule;
}

TEST(Schedule, BeginsStepsAheadAndDrains) {
  const Schedule schedule = overlapping();
  EXPECT_THAT(actions_of(schedule, 1, false, 9),
              ElementsAre("forward 0/1", "forward 0/2", "backward 0/1", "reduce 0/1", "step 0/1"));
  EXPECT_THAT(actions_of(schedule, 2, true, 9),
              ElementsAre("forward 0/3", "backward 0/2", "reduce 0/2", "step 0/2"));
  EXPECT_THAT(actions_of(schedule, 3, true, 3), ElementsAre("backward 0/3", "reduce 0/3", "step 0/3"));
  EXPECT_THAT(actions_of(schedule, 4, false, 4),
              ElementsAre("forward 0/4", "backward 0/4", "reduce 0/4", "step 0/4"));
  EXPECT_THAT(slots_of(schedule, 4), ElementsAre(0, 1, 0, 0, 1, 1, 0, 1));
  EXPECT_THAT(find_problems(schedule), IsEmpty());
}

TEST(Schedule, FindsTheLastContributions) {
  const Schedule schedule = schedules().front()->make({.micro_batches = 3}).front();
  std::vector<std::size_t> last;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    if (is_backward(schedule.actions[i].kind) && schedule.is_last(i)) last.push_back(i);
  }
  EXPECT_THAT(last, ElementsAre(5U));
}

TEST(ScheduleProblems, FindsActionsThatAreMissingDuplicatedOrTooEarly) {
  const Schedule good = schedules().front()->make({.micro_batches = 2}).front();
  const auto problem = [&](const auto& change) {
    Schedule bad = good;
    change(bad.actions);
    const std::vector<std::string> found = find_problems(bad);
    return found.empty() ? "" : found.front();
  };
  using Actions = std::vector<Action>;
  EXPECT_THAT(problem([](Actions& a) { std::swap(a[0], a[1]); }), HasSubstr("its forward pass"));
  EXPECT_THAT(problem([](Actions& a) { a.erase(a.begin() + 3); }), HasSubstr("the last gradients"));
  EXPECT_THAT(problem([](Actions& a) { a.insert(a.begin(), a[0]); }), HasSubstr("comes twice"));
  EXPECT_THAT(problem([](Actions& a) { std::swap(a[3], a[4]); }), HasSubstr("the last gradients"));
  EXPECT_THAT(problem([](Actions& a) { std::swap(a[4], a[5]); }), HasSubstr("one reduction"));
  EXPECT_THAT(problem([](Actions& a) { a.pop_back(); }), HasSubstr("is not applied"));
  EXPECT_THAT(problem([](Actions& a) { a[2].micro_batch = 2; }), HasSubstr("is not of its 2 micro-batches"));
  EXPECT_THAT(problem([](Actions& a) { a[1].kind = backward_weight; }), HasSubstr("its backward_input"));
}

TEST(ScheduleProblems, FindsStepsThatMix) {
  Schedule schedule = overlapping();
  schedule.rules.clear();
  EXPECT_THAT(find_problems(schedule).front(), HasSubstr("weights that were updated since its forward pass"));
  schedule = of({{forward, 0, 0, 1}, {backward, 0, 0, 1}, {reduce}, {step}}, 1);
  EXPECT_THAT(find_problems(schedule).front(), HasSubstr("mixes with the gradients of another step"));
}

/// One forward, one backward (Narayanan et al., 2019) on `stages` ranks.
std::vector<Schedule> one_forward_one_backward(int stages, int micro_batches) {
  std::vector<Schedule> ranks;
  for (int stage = 0; stage < stages; ++stage) {
    Schedule schedule = of({}, micro_batches, stages);
    const auto add = [&](ActionKind kind, int m, int peer = -1) {
      schedule.actions.push_back({.kind = kind, .micro_batch = m, .chunk = stage, .peer = peer});
    };
    const auto pass_forward = [&](int m) {
      if (stage > 0) add(receive_forward, m, stage - 1);
      add(forward, m);
      if (stage + 1 < stages) add(send_forward, m, stage + 1);
    };
    const auto pass_back = [&](int m) {
      if (stage + 1 < stages) add(receive_backward, m, stage + 1);
      add(backward, m);
      if (stage > 0) add(send_backward, m, stage - 1);
    };
    const int warm_up = std::min(stages - 1 - stage, micro_batches);
    for (int m = 0; m < warm_up; ++m) pass_forward(m);
    for (int m = warm_up; m < micro_batches; ++m) {
      pass_forward(m);
      pass_back(m - warm_up);
    }
    for (int m = micro_batches - warm_up; m < micro_batches; ++m) pass_back(m);
    schedule.actions.push_back({reduce});
    schedule.actions.push_back({step});
    ranks.push_back(schedule);
  }
  return ranks;
}

TEST(ScheduleProblems, PipelinesFitTogether) {
  for (const int stages : {1, 2, 3, 4, 7}) {
    for (const int micro_batches : {1, 2, 3, 5, 8}) {
      SCOPED_TRACE(fmt::format("{} stages, {} micro-batches", stages, micro_batches));
      const std::vector<Schedule> ranks = one_forward_one_backward(stages, micro_batches);
      EXPECT_THAT(mylos::find_problems(ranks), IsEmpty());
      for (int stage = 0; stage < stages; ++stage) {
        const std::vector<int> slots = slots_of(ranks[static_cast<std::size_t>(stage)]);
        EXPECT_EQ(std::ranges::max(slots) + 1, std::min(stages - stage, micro_batches));
      }
    }
  }
}

TEST(ScheduleProblems, FindsActionsThatAreMissingDuplicatedOrMisdirected) {
  for (const int stages : {1, 2, 3}) {
    for (const int micro_batches : {1, 3}) {
      const std::vector<Schedule> good = one_forward_one_backward(stages, micro_batches);
      for (std::size_t rank = 0; rank < good.size(); ++rank) {
        for (std::size_t i = 0; i < good[rank].actions.size(); ++i) {
          SCOPED_TRACE(
              fmt::format("{} stages, {} micro-batches, rank {}, action {}", stages, micro_batches, rank, i));
          const auto has_problem = [&](const auto& change) {
            std::vector<Schedule> bad = good;
            std::vector<Action>& actions = bad[rank].actions;
            change(actions, actions.begin() + static_cast<std::ptrdiff_t>(i));
            return !mylos::find_problems(bad).empty();
          };
          EXPECT_TRUE(has_problem([](auto& actions, auto at) { actions.erase(at); }));
          EXPECT_TRUE(has_problem([](auto& actions, auto at) { actions.insert(at, Action(*at)); }));
          if (!is_message(good[rank].actions[i].kind)) continue;
          EXPECT_TRUE(has_problem([](auto& /*actions*/, auto at) { at->peer = (at->peer + 1) % 3; }));
        }
      }
    }
  }
}

/// An order of a step's actions is correct if each backward pass follows its forward pass, the reduction
/// follows all passes, and the update follows the reduction.
TEST(ScheduleProblems, FindsEveryWrongOrder) {
  const std::vector<Action> actions = schedules().front()->make({.micro_batches = 2}).front().actions;
  std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5};
  ASSERT_EQ(actions.size(), order.size());
  int num_right = 0;
  do {
    std::vector<Action> ordered;
    std::vector<std::size_t> place(order.size());
    for (const std::size_t i : order) {
      place[i] = ordered.size();
      ordered.push_back(actions[i]);
    }
    const bool is_right = place[0] < place[1] && place[2] < place[3] && place[4] == 4 && place[5] == 5;
    EXPECT_EQ(find_problems(of(ordered, 2)).empty(), is_right) << testing::PrintToString(order);
    num_right += is_right ? 1 : 0;
  } while (std::ranges::next_permutation(order).found);
  EXPECT_EQ(num_right, 6);
}

/// A channel without tags or buffers, such as NCCL's: a receive that is posted too early blocks the send
/// after it.
TEST(ScheduleProblems, FindsDeadlocks) {
  const auto deadlocked = [](const std::vector<Schedule>& ranks) {
    return std::ranges::any_of(mylos::find_problems(ranks), [](const std::string& text) {
      return text.find("waits forever") != std::string::npos;
    });
  };
  const std::vector<Schedule> good = one_forward_one_backward(2, 2);
  EXPECT_FALSE(deadlocked(good));
  std::vector<Schedule> bad = good;
  std::vector<Action>& first = bad[0].actions;
  // forward 0, send 0, forward 1, send 1, receive 0, ...: the receive moves before the first send
  ASSERT_EQ(first[4].kind, receive_backward);
  std::rotate(first.begin() + 1, first.begin() + 4, first.begin() + 5);
  std::swap(first[2], first[3]);
  EXPECT_TRUE(deadlocked(bad));

  // Two messages in one channel that are received in the opposite order.
  bad = good;
  std::vector<Action>& second = bad[1].actions;
  ASSERT_EQ(second[0].kind, receive_forward);
  ASSERT_EQ(second[4].kind, receive_forward);
  std::swap(second[0].micro_batch, second[4].micro_batch);
  EXPECT_THAT(mylos::find_problems(bad),
              testing::Contains(HasSubstr("send_forward 0 of chunk 0, step 1 of rank 0 "
                                          "meets receive_forward 1 of chunk 1")));
}

/// The recorded programs fix which contribution to the gradient of a shared matrix comes first and overwrites
/// it: a schedule must keep this order.
TEST(ScheduleProblems, WeightGradientsOfTheLastChunkComeFirst) {
  const auto problem = [](std::vector<Action> weights, bool is_tied = true) {
    std::vector<Action> actions = {
        {forward, 0, 0}, {forward, 0, 1}, {backward_input, 0, 1}, {backward_input, 0, 0}};
    actions.insert(actions.end(), weights.begin(), weights.end());
    actions.insert(actions.end(), {{reduce}, {step}});
    const Schedule schedule = of(actions, 1, 2);
    return mylos::find_problems({&schedule, 1}, is_tied);
  };
  EXPECT_THAT(problem({{backward_weight, 0, 0}, {backward_weight, 0, 1}}, false), IsEmpty());
  EXPECT_THAT(problem({{backward_weight, 0, 1}, {backward_weight, 0, 0}}), IsEmpty());
  EXPECT_THAT(problem({{backward_weight, 0, 0}, {backward_weight, 0, 1}}),
              testing::Contains(HasSubstr("the backward_weight of the last chunk")));
}

}  // namespace
}  // namespace mylos
