// SPDX-License-Identifier: BSD-3-Clause
// Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023: 1F1B with a warm-up that
// is twice as long, so that messages have the time of a pass. Stage s of p keeps the activations of 2 (p - s)
// - 1 micro-batches.
#include <algorithm>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

std::vector<Schedule> make(const ScheduleScope& scope) {
  std::vector<Schedule> stages;
  for (int stage = 0; stage < scope.stages; ++stage) {
    Schedule& own = stages.emplace_back();
    own.micro_batches = scope.micro_batches;
    own.chunks = scope.stages;
    const int warm_up = std::min(2 * (scope.stages - stage - 1), scope.micro_batches);
    for (int m = 0; m < scope.micro_batches + warm_up; ++m) {
      if (m < scope.micro_batches) own.actions.push_back({ActionKind::forward, m, stage});
      if (m >= warm_up) own.actions.push_back({ActionKind::backward, m - warm_up, stage});
    }
    own.actions.push_back({ActionKind::reduce});
    own.actions.push_back({ActionKind::step});
  }
  return stages;
}

}  // namespace

extern constinit const ScheduleKind eager_1f1b_schedule{
    .name = "eager_1f1b",
    .doc = "1f1b with a warm-up that is twice as long",
    .make = make,
};

}  // namespace mylos
