// SPDX-License-Identifier: BSD-3-Clause
#include "app/text/stage_plans_text.hpp"

#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "app/deck/stage_plans.hpp"
#include "app/text/plan_text.hpp"
#include "core/base/join.hpp"

namespace mylos {

namespace {

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
                     problem.replicas * problem.ranks_per_replica, limit, links_text(config), aligned(rows));
}

}  // namespace mylos
