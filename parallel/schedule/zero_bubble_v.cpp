// SPDX-License-Identifier: BSD-3-Clause
// ZB-V of Qi et al., "Zero Bubble Pipeline Parallelism" and "Pipeline Parallelism with Controllable Memory"
// (2024): two chunks per stage. Micro-batches pass the stages downwards and back up, so that the loss and the
// first gradient arise where the tokens are read, and gradients come back early.
//
// With m micro-batches, p stages and passes F, I and W of equal time for m >= p: makespan 6m + p - 1, in
// passes of a chunk (of half the size of a stage), for p = 2, 3, 4, and at most 3 more up to p = 8. At most
// min(2p, 2m) activations of a chunk are in flight, as much memory as those of 1F1B's first stage.
#include "parallel/schedule/list_scheduler.hpp"

namespace mylos {

namespace {

using enum ActionKind;

std::vector<int> place(const ScheduleScope& scope) {
  std::vector<int> stages;
  for (int stage = 0; stage < scope.stages; ++stage) stages.push_back(stage);
  for (int stage = scope.stages - 1; stage >= 0; --stage) stages.push_back(stage);
  return stages;
}

std::vector<Schedule> make(const ScheduleScope& scope) {
  // As the papers do, the best of several: no order is best for all numbers of stages and micro-batches.
  const std::vector<PassOrder> orders = {
      {{forward, 1}, {backward_input, 1}, {forward, 0}, {backward_input, 0}},
      {{backward_input, 0}, {forward, 1}, {forward, 0}, {backward_input, 1}},
      {{backward_input, 1}, {backward_input, 0}, {forward, 1}, {forward, 0}},
  };
  return schedule_passes(scope, place(scope), orders);
}

}  // namespace

extern constinit const ScheduleKind zero_bubble_v_schedule{
    .name = "zero_bubble_v",
    .doc = "zero_bubble with two chunks per stage, one on the way down the stages and one on the way back",
    .chunks = 2,
    .follows_times = true,
    .place = place,
    .make = make,
};

}  // namespace mylos
