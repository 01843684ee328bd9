// SPDX-License-Identifier: BSD-3-Clause
// pipedream and pipedream_2bw: 1F1B without a drain between steps, with weights that are older the earlier
// the stage (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
// sections 3.2 and 3.3; "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021, section 3.1).
#include <algorithm>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

/// The stages, also those that one rank emulates, and the replicas of each.
int num_stages(const ScheduleScope& scope) {
  return scope.num_chunks();
}
int replicas_of(const ScheduleScope& scope, int stage) {
  return scope.replicas_of(scope.stages == 1 ? 0 : stage);
}

}  // namespace

std::vector<int> micro_batches_in_flight(const ScheduleScope& scope) {
  std::vector<int> most(static_cast<std::size_t>(num_stages(scope)));
  int following = 0;
  for (int s = num_stages(scope) - 1; s >= 0; --s) {
    const int own = replicas_of(scope, s);
    following = own * (most[static_cast<std::size_t>(s)] = in_flight_before(own, following));
  }
  return most;
}

namespace {

std::vector<int> delays(const ScheduleScope& scope) {
  std::vector<int> delays = micro_batches_in_flight(scope);
  for (int s = 0; s < num_stages(scope); ++s)
    delays[static_cast<std::size_t>(s)] =
        delay_of(replicas_of(scope, s), delays[static_cast<std::size_t>(s)]);
  return delays;
}

std::vector<VersionRule> rules(const ScheduleScope& scope, const std::vector<int>& delays) {
  std::vector<VersionRule> rules;
  for (const int delay : delays) rules.push_back({.micro_batches = scope.micro_batches, .delay = delay});
  return rules;
}

std::vector<VersionRule> stashed(const ScheduleScope& scope) {
  std::vector<int> own = delays(scope);
  if (scope.values != nullptr && scope.values->boolean("parallel.vertical_sync"))
    std::ranges::fill(own, std::ranges::max(own));
  return rules(scope, own);
}

/// Every stage is one step late.
std::vector<VersionRule> double_buffered(const ScheduleScope& scope) {
  return rules(scope, std::vector<int>(static_cast<std::size_t>(num_stages(scope)), scope.micro_batches));
}

/// One micro-batch after another through all chunks: what several stages compute, on one.
Schedule emulation(const ScheduleScope& scope, int replica) {
  Schedule schedule{.actions = {}, .micro_batches = scope.micro_batches, .chunks = scope.chunks};
  for (int m = replica; m < scope.micro_batches; m += scope.replicas_of(0)) {
    for (int chunk = 0; chunk < scope.chunks; ++chunk)
      schedule.actions.push_back({ActionKind::forward, m, chunk});
    for (int chunk = scope.chunks - 1; chunk >= 0; --chunk)
      schedule.actions.push_back({ActionKind::backward, m, chunk});
  }
  schedule.actions.push_back({ActionKind::reduce});
  for (int chunk = 0; chunk < scope.chunks; ++chunk)
    schedule.actions.push_back({.kind = ActionKind::step, .chunk = chunk});
  return schedule;
}

/// 1F1B with a warm-up that reaches into the next steps: replica j of r takes micro-batches j, j + r, ... The
/// update of several replicas comes a micro-batch later, just before the first forward pass that needs it, so
/// that the sum of the gradients has the time of two passes.
Schedule stage_of(const ScheduleScope& scope, int stage, int replica, int warm_up) {
  Schedule schedule{.actions = {}, .micro_batches = scope.micro_batches, .chunks = scope.stages};
  const int replicas = scope.replicas_of(stage);
  schedule.gradient_sets = replicas > 1 ? 2 : 1;
  const int own = scope.micro_batches / replicas;
  const auto add = [&](ActionKind kind, int i) {
    schedule.actions.push_back(
        {.kind = kind, .micro_batch = i % own * replicas + replica, .chunk = stage, .ahead = i / own});
  };
  const int first = schedule.gradient_sets - 1;
  for (int i = first; i < own + first; ++i) {
    if (i == own) schedule.actions.push_back({ActionKind::reduce});
    add(ActionKind::forward, i + warm_up);
    add(ActionKind::backward, i);
  }
  if (first == 0) schedule.actions.push_back({ActionKind::reduce});
  schedule.actions.push_back({.kind = ActionKind::step, .chunk = stage});
  return schedule;
}

std::vector<Schedule> make(const ScheduleScope& scope) {
  std::vector<Schedule> lists;
  const std::vector<int> most = micro_batches_in_flight(scope);
  for (int stage = 0; stage < scope.stages; ++stage) {
    for (int replica = 0; replica < scope.replicas_of(stage); ++replica) {
      lists.push_back(scope.stages == 1
                          ? emulation(scope, replica)
                          : stage_of(scope, stage, replica, most[static_cast<std::size_t>(stage)] - 1));
    }
  }
  return lists;
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
