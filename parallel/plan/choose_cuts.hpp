// SPDX-License-Identifier: BSD-3-Clause
// choose_cuts: where to cut a model into chunks, by simulation.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/plan/unit_costs.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// Returns the ModelCuts::places of the cut with the shortest simulated step. The cut with the least work on
/// the busiest stage may have a longer one, since the first and the last micro-batch also wait for the
/// others. Of the cuts whose steps are at most 1 % longer than the shortest, it is the one whose worst stage
/// needs the least memory: 16 bytes per parameter, for weight, gradient and optimizer, and the activations
/// that the schedule keeps. The times of `scope` are ignored; those of each cut are the sums of its units'
/// costs. All ranks choose the same cut.
///
/// If there are at most `most_cuts`, all cuts are considered; if the lists depend on the times of the passes,
/// the 200 with the least work on the busiest stage. Otherwise the search begins with the cut whose largest
/// chunk has the least work, and moves single blocks between chunks: as long as that reduces the work of the
/// busiest stage, which may have several chunks, then as long as it shortens the step. A step of more than 8
/// micro-batches per stage is extrapolated from steps of 4 and 8 per stage, unless the schedule is from a
/// file, which has its own number.
std::vector<int> choose_cuts(const std::vector<UnitCost>& units, const ScheduleKind& kind,
                             const ScheduleScope& scope, std::size_t most_cuts = 20000);

}  // namespace mylos
