// SPDX-License-Identifier: BSD-3-Clause
// Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS
// 2019. With p stages, m micro-batches and equal times F and B, a step takes (m + p - 1) (F + B), of which
// each stage is idle for (p - 1) / (m + p - 1). Every stage keeps the activations of m micro-batches.
#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

std::vector<Schedule> make(const ScheduleScope& scope) {
  std::vector<Schedule> stages;
  for (int stage = 0; stage < scope.stages; ++stage) {
    Schedule& schedule = stages.emplace_back();
    schedule.micro_batches = scope.micro_batches;
    schedule.chunks = scope.stages;
    for (const ActionKind kind : {ActionKind::forward, ActionKind::backward}) {
      for (int m = 0; m < scope.micro_batches; ++m) schedule.actions.push_back({kind, m, stage});
    }
    schedule.actions.push_back({ActionKind::reduce});
    schedule.actions.push_back({ActionKind::step});
  }
  return stages;
}

}  // namespace

extern constinit const ScheduleKind gpipe_schedule{
    .name = "gpipe",
    .doc = "the forward passes of all micro-batches, then their backward passes in the same order",
    .make = make,
};

}  // namespace mylos
