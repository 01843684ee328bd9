// SPDX-License-Identifier: BSD-3-Clause
// How a deck's model can be divided into the stages of an asynchronous pipeline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/deck/run_config.hpp"
#include "parallel/plan/partition.hpp"
#include "parallel/plan/unit_costs.hpp"

namespace mylos {

/// What the stages of `config` are chosen from, for so many ranks. `units` have the times of
/// `config.unit_profile`, or FLOPs if there is none. Of the parallel layout, only tensor and schedule count.
PartitionProblem partition_problem(const RunConfig& config, std::vector<UnitCost> units, const JobSize& job);

/// The value of parallel.stages: the blocks of each stage, such as "8,4".
std::string blocks_text(const Partition& partition, std::int64_t layers);

/// Returns what a second is in the unit of the units' times; nothing if that is not known.
std::optional<double> second_of(const RunConfig& config);

}  // namespace mylos
