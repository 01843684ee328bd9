// SPDX-License-Identifier: BSD-3-Clause
// Qi et al., "Zero Bubble Pipeline Parallelism" (2024), schedule H1: the input gradient, which the previous
// stage waits for, is computed at once; weight gradients fill the time in which a stage would wait.
//
// With m micro-batches, p stages and passes F, I and W of equal time: makespan 2m + p - 1 + max(m, p), that
// is p - 1 of idle time per stage if m >= p (1F1B: 3 (p - 1)), and at most min(p, m) micro-batches in flight.
#include "parallel/schedule/list_scheduler.hpp"

namespace mylos {

namespace {

using enum ActionKind;

std::vector<Schedule> make(const ScheduleScope& scope) {
  // With equal times, the first order has the makespan above. With others, either may be better.
  const std::vector<PassOrder> orders = {{{forward}, {backward_input}}, {{backward_input}, {forward}}};
  std::vector<int> stages;
  for (int stage = 0; stage < scope.stages; ++stage) stages.push_back(stage);
  return schedule_passes(scope, stages, orders);
}

}  // namespace

extern constinit const ScheduleKind zero_bubble_schedule{
    .name = "zero_bubble",
    .doc = "input gradients at once, weight gradients while a stage would wait, by the times of the passes",
    .follows_times = true,
    .make = make,
};

}  // namespace mylos
