// SPDX-License-Identifier: BSD-3-Clause
// Schedules that are read from a file. Makespan, bubble and memory are what the file makes of them.
#include <algorithm>

#include "core/base/error.hpp"
#include "parallel/schedule/schedule_file.hpp"

namespace mylos {

namespace {

std::vector<int> place(const std::vector<Schedule>& stages) {
  std::vector<int> places(static_cast<std::size_t>(stages.front().chunks));
  for (int stage = 0; stage < std::ssize(stages); ++stage) {
    for (const int chunk : stages[static_cast<std::size_t>(stage)].held_chunks())
      places[static_cast<std::size_t>(chunk)] = stage;
  }
  return places;
}

/// Refuses a file for another number of stages, chunks or micro-batches.
void check(const ScheduleScope& scope, const std::vector<Schedule>& stages) {
  const Schedule& first = stages.front();
  const auto num_stages = static_cast<int>(stages.size());
  for (int stage = 1; stage < num_stages; ++stage) {
    const std::size_t held = stages[static_cast<std::size_t>(stage)].held_chunks().size();
    if (held != first.held_chunks().size()) {
      fail(ExitCode::usage, "row {} has {} chunks, but row 1 has {}: all stages have equally many", stage + 1,
           held, first.held_chunks().size());
    }
  }
  if (num_stages != scope.stages || first.chunks != scope.num_chunks() ||
      first.micro_batches != scope.micro_batches) {
    fail(ExitCode::usage,
         "it has {} stages, {} chunks in all and {} micro-batches, but the run has {}, "
         "{} and {}",
         num_stages, first.chunks, first.micro_batches, scope.stages, scope.num_chunks(),
         scope.micro_batches);
  }
}

/// Divides all backward passes of a stage that divides some: its programs are of one kind.
void divide(Schedule& stage) {
  if (!stage.has(ActionKind::backward_weight)) return;
  std::vector<Action> divided;
  for (Action action : stage.actions) {
    const bool is_whole = action.kind == ActionKind::backward;
    if (is_whole) action.kind = ActionKind::backward_input;
    divided.push_back(action);
    if (!is_whole) continue;
    action.kind = ActionKind::backward_weight;
    divided.push_back(action);
  }
  stage.actions = std::move(divided);
}

std::vector<Schedule> make(const ScheduleScope& scope) {
  std::vector<Schedule> stages = parse_schedule(scope.file);
  check(scope, stages);
  for (Schedule& stage : stages) divide(stage);
  return stages;
}

}  // namespace

extern constinit const ScheduleKind file_schedule{
    .name = "file",
    .doc = "the passes of parallel.schedule_file, a compute-only CSV of torch.distributed.pipelining",
    .chunks = 0,
    .place = [](const ScheduleScope& scope) { return place(parse_schedule(scope.file)); },
    .make = make,
};

}  // namespace mylos
