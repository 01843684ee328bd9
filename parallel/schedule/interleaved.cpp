// SPDX-License-Identifier: BSD-3-Clause
// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC
// 2021, section 2.2. Chunk c lies on stage c mod p, so that a micro-batch passes each of the p stages v times
// and the idle time is that of passes of one chunk. With m micro-batches, a multiple of p, and equal times F
// and B of a chunk, a step takes (v m + p - 1) (F + B), of which each stage is idle for
// (p - 1) / (v m + p - 1). Stage s keeps the activations of min(2 (p - 1 - s) + (v - 1) p + 1, v m) pairs of
// a micro-batch and a chunk.
#include <algorithm>

#include "core/base/error.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

std::vector<Schedule> make(const ScheduleScope& scope) {
  const int stages = scope.stages;
  if (scope.micro_batches % stages != 0) {
    const int less = scope.micro_batches / stages * stages;
    fail(ExitCode::usage,
         "parallel.schedule = interleaved needs micro-batches that are a multiple of the {} stages, not {}; "
         "{} would work",
         stages, scope.micro_batches,
         less == 0 ? std::to_string(stages) : fmt::format("{} or {}", less, less + stages));
  }
  const int passes = scope.micro_batches * scope.chunks;  // of a stage, in one direction
  std::vector<Schedule> schedules;
  for (int stage = 0; stage < stages; ++stage) {
    Schedule& schedule = schedules.emplace_back();
    schedule.micro_batches = scope.micro_batches;
    schedule.chunks = scope.num_chunks();
    // Groups of p micro-batches pass through all chunks of the stage, one chunk after another.
    const auto add = [&](ActionKind kind, int number) {
      const int in_group = number % scope.num_chunks();
      const int part = kind == ActionKind::forward ? in_group / stages : scope.chunks - 1 - in_group / stages;
      schedule.actions.push_back(
          {kind, number / scope.num_chunks() * stages + number % stages, part * stages + stage});
    };
    const int warm_up = std::min(2 * (stages - 1 - stage) + (scope.chunks - 1) * stages, passes);
    for (int number = 0; number < passes + warm_up; ++number) {
      if (number < passes) add(ActionKind::forward, number);
      if (number >= warm_up) add(ActionKind::backward, number - warm_up);
    }
    schedule.actions.push_back({ActionKind::reduce});
    schedule.actions.push_back({ActionKind::step});
  }
  return schedules;
}

}  // namespace

extern constinit const ScheduleKind interleaved_schedule{
    .name = "interleaved",
    .doc = "1f1b with several chunks per stage, which shortens idle times and adds messages and activations",
    .chunks = 0,
    .make = make,
};

}  // namespace mylos
