// SPDX-License-Identifier: BSD-3-Clause
// pipedream and pipedream_2bw: 1F1B without a drain between steps, with weights that are older the earlier
// the stage (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
// sections 3.2 and 3.3; "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021, section 3.1).
#include <algorithm>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

/// Micro-batches in flight on each replica of a stage, by stage.
std::vector<int> in_flight(const ScheduleScope& scope) {
  std::vector<int> most(static_cast<std::size_t>(scope.num_chunks()), 1);
  for (std::size_t s = most.size() - 1; s-- > 0;) most[s] = most[s + 1] + 1;
  return most;
}

/// How many micro-batches each stage's weights may be behind: with one replica as many as follow in flight,
/// with several one more on each replica, so that none waits for the gradient of another.
std::vector<int> delays(const ScheduleScope& scope) {
  std::vector<int> delays;
  for (const int most : in_flight(scope))
    delays.push_back(scope.replicas == 1 ? most - 1 : most * scope.replicas);
  return delays;
}

std::vector<VersionRule> rules(const ScheduleScope& scope, const std::vector<int>& delays) {
  std::vector<VersionRule> rules;
  for (const int delay : delays)
    rules.push_back({.micro_batches = scope.micro_batches * scope.replicas, .delay = delay});
  return rules;
}

std::vector<VersionRule> stashed(const ScheduleScope& scope) {
  std::vector<int> own = delays(scope);
  if (scope.values != nullptr && scope.values->boolean("parallel.vertical_sync"))
    std::ranges::fill(own, own.front());
  return rules(scope, own);
}

/// Every stage is one step late.
std::vector<VersionRule> double_buffered(const ScheduleScope& scope) {
  const int step = scope.micro_batches * scope.replicas;
  return rules(scope, std::vector<int>(static_cast<std::size_t>(scope.num_chunks()), step));
}

/// One micro-batch after another through all chunks: what several stages compute, on one.
std::vector<Schedule> emulation(const ScheduleScope& scope) {
  Schedule schedule{.actions = {}, .micro_batches = scope.micro_batches, .chunks = scope.chunks};
  for (int m = 0; m < scope.micro_batches; ++m) {
    for (int chunk = 0; chunk < scope.chunks; ++chunk)
      schedule.actions.push_back({ActionKind::forward, m, chunk});
    for (int chunk = scope.chunks - 1; chunk >= 0; --chunk)
      schedule.actions.push_back({ActionKind::backward, m, chunk});
  }
  schedule.actions.push_back({ActionKind::reduce});
  for (int chunk = 0; chunk < scope.chunks; ++chunk)
    schedule.actions.push_back({.kind = ActionKind::step, .chunk = chunk});
  return {schedule};
}

std::vector<Schedule> make(const ScheduleScope& scope) {
  if (scope.stages == 1) return emulation(scope);
  std::vector<Schedule> stages;
  const std::vector<int> most = in_flight(scope);
  for (int stage = 0; stage < scope.stages; ++stage) {
    Schedule& schedule = stages.emplace_back();
    schedule.micro_batches = scope.micro_batches;
    schedule.chunks = scope.stages;
    const int warm_up = most[static_cast<std::size_t>(stage)] - 1;
    for (int m = 0; m < scope.micro_batches; ++m) {
      const int number = m + warm_up;
      schedule.actions.push_back({.kind = ActionKind::forward,
                                  .micro_batch = number % scope.micro_batches,
                                  .chunk = stage,
                                  .ahead = number / scope.micro_batches});
      schedule.actions.push_back({ActionKind::backward, m, stage});
    }
    schedule.actions.push_back({ActionKind::reduce});
    schedule.actions.push_back({.kind = ActionKind::step, .chunk = stage});
  }
  return stages;
}

}  // namespace

extern constinit const ScheduleKind pipedream_schedule{
    .name = "pipedream",
    .doc =
        "1F1B without draining between steps; a stage keeps a version of its weights for each micro-batch "
        "in flight, and uses the newest in 1F1B order",
    .make = make,
    .rules = stashed,
};

extern constinit const ScheduleKind pipedream_2bw_schedule{
    .name = "pipedream_2bw",
    .doc = "the same with two versions, which are one step late on all stages",
    .make = make,
    .rules = double_buffered,
};

}  // namespace mylos
