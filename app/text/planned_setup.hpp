// SPDX-License-Identifier: BSD-3-Clause
// Setups and plans for commands that need no launcher.
#pragma once

#include <string>
#include <vector>

#include "app/deck/command_line.hpp"
#include "app/launch/setup.hpp"
#include "app/train/opened_model.hpp"
#include "parallel/plan/run_plan.hpp"

namespace mylos {

/// What `--ranks` is by default, for the texts of that option.
std::string default_ranks_text();

/// Makes the setup for commands that need no launcher. The number of ranks is `--ranks` or, by default, the
/// product of the extents of `rank_factors`, in which a 0 counts as 1; the sum of parallel.replicas, if there
/// are any, replaces those of `replica_axes`. All ranks are on one node unless `--ranks-per-node` is given.
/// `shape_of` is as in `make_setup`.
Setup planned_setup(const CommandLine& line, const std::string& deck_name,
                    const ShapeOfModel& shape_of = shape_at);

/// Plans the run of `setup` by stage: memory, traffic and work per step (`make_plans`).
std::vector<RunPlan> plans_of(const Setup& setup);
/// The plan of the rank that needs the most memory.
inline RunPlan plan_of(const Setup& setup) {
  return largest_of(plans_of(setup));
}

}  // namespace mylos
