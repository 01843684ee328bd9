// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/layout/parallel_layout.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "parallel/schedule/messages.hpp"
#include "parallel/schedule/problems.hpp"

namespace mylos {

std::int64_t ParallelLayout::extent_of(const AxisKind& kind) const {
  if (kind.member != nullptr) return this->*kind.member;
  const std::string key = key_of(kind.key);
  return values.all().contains(key) ? values.integer(key) : 1;
}

std::int64_t ParallelLayout::ranks_per_replica() const {
  std::int64_t ranks = 1;
  for (const AxisKind* kind : rank_factors(replica_axes)) ranks *= extent_of(*kind);
  return ranks;
}

GridExtents ParallelLayout::extents() const {
  const std::int64_t shards = std::max<std::int64_t>(shard / expert, 1);
  GridExtents extents;
  for (const AxisKind* kind : axis_kinds()) extents[kind->axis] = static_cast<int>(extent_of(*kind));
  extents[Axis::shard] = static_cast<int>(shards);
  extents[Axis::replicate] = static_cast<int>(data / (shards * expert));
  extents.replicas = replicas;
  if (pipeline > 1) {
    const std::vector<int> stages = stages_of_chunks();
    extents.first_stage = stages.front();
    extents.last_stage = stages.back();
  }
  return extents;
}

ScheduleScope ParallelLayout::scope(std::int64_t micro_batches) const {
  // The lists of an asynchronous pipeline number the micro-batches of all replicas.
  std::vector<int> own_replicas;
  for (int stage = 0; stage < pipeline && schedule->is_asynchronous(); ++stage)
    own_replicas.push_back(replicas_of(stage));
  return {
      .micro_batches = static_cast<int>(schedule->is_asynchronous() ? micro_batches * data : micro_batches),
      .stages = static_cast<int>(pipeline),
      .chunks = static_cast<int>(emulated_stages > 1    ? emulated_stages
                                 : schedule->chunks > 0 ? schedule->chunks
                                                        : chunks),
      .replicas = own_replicas,
      .in_flight = static_cast<int>(in_flight),
      .times = times,
      .file = schedule_file,
      .values = &values};
}

std::set<int> ParallelLayout::held_chunks(const Coordinates& coordinates) const {
  const std::vector<int> stages = stages_of_chunks();
  std::set<int> held;
  for (int chunk = 0; chunk < std::ssize(stages); ++chunk) {
    if (stages[static_cast<std::size_t>(chunk)] == coordinates.index(Axis::pipeline)) held.insert(chunk);
  }
  return held;
}

std::vector<Schedule> ParallelLayout::schedules(std::int64_t micro_batches, bool is_tied) const {
  const ScheduleScope own = scope(micro_batches);
  std::vector<Schedule> stages = schedule->make(own);
  if (schedule->rules != nullptr) {
    for (Schedule& stage : stages) stage.rules = schedule->rules(own);
  }
  if (own.num_chunks() == 1) return stages;
  if (stages.size() > 1) stages = with_messages(stages, own.times);
  if (const std::vector<std::string> problems = find_problems(stages, is_tied); !problems.empty())
    fail(ExitCode::usage, "schedule {}: {}", schedule->name, join(problems, "; "));
  return stages;
}

int ParallelLayout::most_ahead(std::int64_t micro_batches) const {
  int most = 0;
  for (const Schedule& list : schedule->make(scope(micro_batches))) most = std::max(most, list.ahead());
  return most;
}

std::vector<AxisSet> ParallelLayout::groups() const {
  std::vector<AxisSet> groups = {loss_axes, all_axes};
  for (const AxisKind* kind : axis_kinds()) {
    if (same_loss_axes.contains(kind->axis) && extent_of(*kind) > 1) groups.emplace_back(AxisSet{kind->axis});
  }
  if (pipeline > 1 && replicas.empty())
    groups.insert(groups.end(), {AxisSet{Axis::pipeline}, AxisSet{Axis::embedding}});
  if (is_asynchronous()) groups.insert(groups.end(), {message_axes(), all_axes.without({Axis::pipeline})});
  if (shard > 1) groups.push_back(loss_axes.without({Axis::replicate}));
  if (shard > 1 && shard < data) groups.emplace_back(AxisSet{Axis::replicate});
  if (expert > 1) {
    constexpr AxisSet of_experts = loss_axes.without({Axis::expert});  // that sum their gradients
    groups.insert(groups.end(), {AxisSet{Axis::expert}, of_experts});
    if (shard > 1) groups.push_back(of_experts.without({Axis::replicate}));
  }
  return groups;
}

}  // namespace mylos
