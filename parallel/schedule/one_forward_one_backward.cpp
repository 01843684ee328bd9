// SPDX-License-Identifier: BSD-3-Clause
// Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, in the variant
// that ends with one update: "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (PipeDream-Flush).
// With p stages, m micro-batches and equal times F and B, a step takes (m + p - 1) (F + B), of which each
// stage is idle for (p - 1) / (m + p - 1), as with GPipe. Stage s keeps the activations of only
// min(p - s, m) micro-batches.
#include <algorithm>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

std::vector<Schedule> make(const ScheduleScope& scope) {
  std::vector<Schedule> stages;
  for (int stage = 0; stage < scope.stages; ++stage) {
    Schedule& schedule = stages.emplace_back();
    schedule.micro_batches = scope.micro_batches;
    schedule.chunks = scope.stages;
    const int warm_up = std::min(scope.stages - 1 - stage, scope.micro_batches);
    for (int m = 0; m < scope.micro_batches + warm_up; ++m) {
      if (m < scope.micro_batches) schedule.actions.push_back({ActionKind::forward, m, stage});
      if (m >= warm_up) schedule.actions.push_back({ActionKind::backward, m - warm_up, stage});
    }
    schedule.actions.push_back({ActionKind::reduce});
    schedule.actions.push_back({ActionKind::step});
  }
  return stages;
}

}  // namespace

extern constinit const ScheduleKind one_forward_one_backward_schedule{
    .name = "1f1b",
    .doc = "after a warm-up, forward and backward passes alternate, so that few micro-batches are in flight",
    .make = make,
};

}  // namespace mylos
