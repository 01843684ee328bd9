// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/stage_plans.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "core/base/dtype.hpp"
#include "core/base/join.hpp"

namespace mylos {

namespace {

VersionsKept versions_kept(const ParallelLayout& layout) {
  if (std::string_view(layout.schedule->name) == "pipedream_2bw") return VersionsKept::double_buffered;
  return layout.values.boolean("parallel.vertical_sync") ? VersionsKept::vertical_sync
                                                         : VersionsKept::stashed;
}

}  // namespace

std::optional<double> second_of(const RunConfig& config) {
  if (config.has_seconds()) return 1.0;
  if (config.peak_tflops > 0.0) return 1e12 * config.peak_tflops;
  return std::nullopt;
}

PartitionProblem partition_problem(const RunConfig& config, std::vector<UnitCost> units, const JobSize& job) {
  const auto per_replica = static_cast<int>(config.parallel.ranks_per_replica());
  constexpr const char* pretended = "comm.ranks_per_node";
  const ParamValues& values = config.parallel.values;
  const bool pretends = values.all().contains(pretended) && values.integer(pretended) > 0;
  PartitionProblem problem{
      .units = std::move(units),
      .replicas = static_cast<int>(job.ranks) / per_replica,
      .ranks_per_replica = per_replica,
      .ranks_per_node = static_cast<int>(pretends ? values.integer(pretended) : job.ranks_per_node),
      .micro_batches = static_cast<int>(config.train.global_batch / config.train.micro_batch),
      .versions = versions_kept(config.parallel),
      .weight_bytes = static_cast<double>(size_of(config.train.dtype)),
      .gradient_bytes = static_cast<double>(size_of(config.train.grad_dtype)),
      .state_bytes = 4.0 * static_cast<double>(config.optimizer.kind->values_per_element(
                               config.train.dtype, config.optimizer.keeps_master)),
      .memory_bytes = 1e9 * config.machine.memory_gb};
  if (const std::optional<double> second = second_of(config)) {
    constexpr double bytes_per_gigabit = 1e9 / 8.0;
    problem.node_bandwidth = bytes_per_gigabit * config.machine.node_gbps / *second;
    problem.link_bandwidth = bytes_per_gigabit * config.machine.link_gbps / *second;
  }
  return problem;
}

std::string blocks_text(const Partition& partition, std::int64_t layers) {
  std::vector<std::int64_t> blocks;
  // Unit 0 is the embedding, which has no block.
  for (std::size_t stage = 0; stage < partition.first_units.size(); ++stage) {
    const bool is_last = stage + 1 == partition.first_units.size();
    const std::int64_t end = is_last ? layers + 1 : partition.first_units[stage + 1];
    blocks.push_back(end - std::max(1, partition.first_units[stage]));
  }
  return join(blocks, ",");
}

}  // namespace mylos
