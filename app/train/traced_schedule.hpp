// SPDX-License-Identifier: BSD-3-Clause
// traced_schedule: the drawing of a traced step of a pipeline, made from what the ranks recorded.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/deck/run_config.hpp"
#include "core/trace/trace.hpp"
#include "io/report/step_diagram.hpp"
#include "parallel/plan/unit_costs.hpp"

namespace mylos {

/// What a rank of `stage` did, by the events of its trace.
DiagramRow traced_row(std::span<const TraceEvent> events, int rank, int stage);

/// Returns the diagram of a step. `rows` holds the json_of what each rank did, in the order of the ranks: if
/// there are many, only the first rank of each stage is drawn. In the simulation, the passes take the times
/// of `units`, and messages those that the simulated link gives them.
StepDiagram diagram_of(const RunConfig& config, const std::vector<UnitCost>& units,
                       std::span<const std::string> rows);

}  // namespace mylos
