// SPDX-License-Identifier: BSD-3-Clause
#include "app/stage_plans.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "app/plan_text.hpp"
#include "core/base/dtype.hpp"
#include "core/base/join.hpp"

namespace mylos {

namespace {

/// What a second is in the unit of the units' times; nothing if that is not known.
std::optional<double> second_of(const RunConfig& config) {
  if (config.has_seconds()) return 1.0;
  if (config.peak_tflops > 0.0) return 1e12 * config.peak_tflops;
  return std::nullopt;
}

std::string links_text(const RunConfig& config) {
  const MachineConfig& machine = config.machine;
  if (machine.node_gbps == 0.0 && machine.link_gbps == 0.0)
    return "links are ignored: [machine] node_gbps and link_gbps are not known";
  if (!second_of(config))
    return "links are ignored: neither a profile nor [machine] peak_tflops says what a FLOP takes";
  const auto rate = [](double gbps) { return gbps > 0.0 ? fmt::format("{:.4g} Gbit/s", gbps) : "ignored"; };
  return fmt::format("links within a node: {}, between nodes: {}", rate(machine.node_gbps),
                     rate(machine.link_gbps));
}

VersionsKept versions_kept(const ParallelLayout& layout) {
  if (std::string_view(layout.schedule->name) == "pipedream_2bw") return VersionsKept::double_buffered;
  return layout.values.boolean("parallel.vertical_sync") ? VersionsKept::vertical_sync
                                                         : VersionsKept::stashed;
}

std::string bound_text(const Partition& partition) {
  switch (partition.bound) {
    case Bottleneck::passes:
      return fmt::format("passes of stage {}", partition.bound_stage);
    case Bottleneck::sum:
      return fmt::format("sum of stage {}'s gradients", partition.bound_stage);
    case Bottleneck::link:
      break;
  }
  return fmt::format("link from stage {} to {}", partition.bound_stage, partition.bound_stage + 1);
}

}  // namespace

PartitionProblem partition_problem(const RunConfig& config, std::vector<UnitCost> units, const JobSize& job) {
  const auto tensor = static_cast<int>(config.parallel.tensor);
  constexpr const char* pretended = "comm.ranks_per_node";
  const ParamValues& values = config.parallel.values;
  const bool pretends = values.all().contains(pretended) && values.integer(pretended) > 0;
  PartitionProblem problem{
      .units = std::move(units),
      .replicas = static_cast<int>(job.ranks) / tensor,
      .tensor = tensor,
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

std::string stage_plans_text(const RunConfig& config) {
  const PartitionProblem& problem = *config.partition;
  const bool has_seconds = second_of(config).has_value();
  const double second = second_of(config).value_or(1e9);
  std::vector<std::vector<std::string>> rows = {{"stages", "blocks", "replicas",
                                                 has_seconds ? "s per micro-batch" : "GFLOP per micro-batch",
                                                 "bound by", "memory GB", "delay in steps"}};
  const std::vector<std::optional<Partition>> plans =
      best_partitions(problem, static_cast<int>(problem.units.size()));
  for (std::size_t i = 0; i < plans.size(); ++i) {
    rows.push_back({std::to_string(i + 1), "none"});
    if (const std::optional<Partition>& plan = plans[i]) {
      rows.back() = {std::to_string(i + 1),      blocks_text(*plan, config.model.layers),
                     join(plan->replicas, ","),  fmt::format("{:.4g}", plan->time / second),
                     bound_text(*plan),          fmt::format("{:.3f}", 1e-9 * plan->memory),
                     std::to_string(plan->delay)};
    }
  }
  const std::string limit = config.machine.memory_gb > 0.0
                                ? fmt::format(" with at most {} GB per rank", config.machine.memory_gb)
                                : "";
  return fmt::format("plans        the best division among {} ranks{} by number of stages; {}\n{}",
                     problem.replicas * problem.tensor, limit, links_text(config), aligned(rows));
}

}  // namespace mylos
