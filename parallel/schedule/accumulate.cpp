// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

std::vector<Schedule> make(const ScheduleScope& scope) {
  std::vector<Schedule> stages(static_cast<std::size_t>(scope.stages));
  for (int stage = 0; stage < scope.stages; ++stage) {
    Schedule& schedule = stages[static_cast<std::size_t>(stage)];
    schedule.micro_batches = scope.micro_batches;
    schedule.chunks = scope.stages;
    for (int m = 0; m < scope.micro_batches; ++m) {
      schedule.actions.push_back({ActionKind::forward, m, stage});
      schedule.actions.push_back({ActionKind::backward, m, stage});
    }
    schedule.actions.push_back({ActionKind::reduce});
    schedule.actions.push_back({ActionKind::step});
  }
  return stages;
}

}  // namespace

extern constinit const ScheduleKind accumulate_schedule{
    .name = "accumulate",
    .doc = "the forward and backward pass of one micro-batch after another",
    .make = make,
};

}  // namespace mylos
