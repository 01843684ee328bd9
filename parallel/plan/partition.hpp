// SPDX-License-Identifier: BSD-3-Clause
// The partitioner of asynchronous pipelines: where to cut a model into stages, and how many replicas each
// stage has (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
// section 3.1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/plan/unit_costs.hpp"

namespace mylos {

/// Which versions of its weights a stage keeps.
enum class VersionsKept : std::uint8_t {
  stashed,          ///< those that its own micro-batches need
  vertical_sync,    ///< on all stages as many as the first needs
  double_buffered,  ///< two, if a step has as many micro-batches as the first stage's delay
};

/// What is divided, and among which ranks.
struct PartitionProblem {
  std::vector<UnitCost> units;  ///< of a rank, in the order of the model
  int replicas = 1;             ///< ranks / ranks_per_replica: those of all stages together
  int ranks_per_replica = 1;    ///< neighbouring ranks that share the work of a replica
  int ranks_per_node = 0;       ///< 0: every rank is on a node of its own
  int micro_batches = 1;        ///< A, of a step; every stage's number of replicas divides it
  VersionsKept versions = VersionsKept::stashed;
  /// Bytes that two ranks of one node, or of two nodes, exchange per unit of the units' times; 0: no message
  /// takes time.
  double node_bandwidth = 0.0;
  double link_bandwidth = 0.0;
  /// Per parameter.
  double weight_bytes = 4.0;
  double gradient_bytes = 4.0;
  double state_bytes = 8.0;
  double memory_bytes = 0.0;  ///< the most that a rank may need; 0: no limit
};

/// What bounds the rate of a pipeline.
enum class Bottleneck : std::uint8_t {
  passes,  ///< of a stage
  sum,     ///< of the gradients of a stage's replicas
  link,    ///< from a stage to the next
};

/// A division into stages; with one, plain data parallelism.
struct Partition {
  std::vector<int> first_units{};  ///< by stage
  std::vector<int> replicas{};     ///< by stage

  /// What a micro-batch takes in the steady state, in the unit of the units' times: the longest of, for a
  /// stage with r replicas, work / r and 2 (r - 1) / r x gradient bytes / bandwidth / A, and for a link
  /// 2 x output bytes / bandwidth.
  double time = 0.0;
  Bottleneck bound = Bottleneck::passes;
  int bound_stage = 0;
  double passes = 0.0;  ///< the longest work / r of a stage
  /// Bytes of the rank that needs the most: versions x weights + gradients (two sets if it has replicas) +
  /// states + micro-batches in flight x kept activations.
  double memory = 0.0;
  int delay = 0;  ///< the most steps by which weights are behind

  int stages() const { return static_cast<int>(replicas.size()); }
};

/// Returns the time and the memory of a division.
Partition with_costs(const PartitionProblem& problem, Partition division);

/// Returns, by number of stages from 1, the division with the shortest time that needs no more memory than
/// there is; nothing if there is none. Of several with this time, it is one with the shortest passes. Both
/// are exact: dynamic programming from the last stage to the first, over the first unit, the ranks and the
/// micro-batches in flight of the remaining stages. Of these numbers and the time, only pairs that no other
/// undercuts in both are kept.
std::vector<std::optional<Partition>> best_partitions(const PartitionProblem& problem, int most_stages);

}  // namespace mylos
