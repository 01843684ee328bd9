// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

std::vector<Schedule> make(const ScheduleScope& scope) {
  require(scope.stages == 1, "accumulate has one stage");
  Schedule schedule;
  schedule.micro_batches = scope.micro_batches;
  for (int m = 0; m < scope.micro_batches; ++m) {
    schedule.actions.push_back({ActionKind::forward, m});
    schedule.actions.push_back({ActionKind::backward, m});
  }
  schedule.actions.push_back({ActionKind::reduce});
  schedule.actions.push_back({ActionKind::step});
  return {schedule};
}

}  // namespace

extern constinit const ScheduleKind accumulate_schedule{
    .name = "accumulate",
    .doc = "the forward and backward pass of one micro-batch after another",
    .make = make,
};

}  // namespace mylos
