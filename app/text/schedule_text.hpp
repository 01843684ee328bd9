// SPDX-License-Identifier: BSD-3-Clause
// The text of `mylos train --dry-run --schedule`: a simulated step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/deck/run_config.hpp"
#include "parallel/plan/run_plan.hpp"
#include "parallel/schedule/schedule.hpp"
#include "parallel/schedule/simulation.hpp"

namespace mylos {

/// Gives the passes of every chunk the times in `text`, "F,I,W", instead of those of the model: schedules,
/// messages and simulations are made with them. Throws ExitCode::usage, naming --pass-times, for another
/// text.
void set_pass_times(RunConfig& config, const std::string& text);

/// Throws ExitCode::usage, naming --write-schedule, if steps overlap.
void check_is_one_step(const RunConfig& config);

/// The passes of a step of all stages, without messages.
std::vector<Schedule> passes_of_step(const RunConfig& config);

/// Describes a simulated step: a line for each stage, the makespan, the bubble (the part of the time of all
/// stages in which they are idle) and a diagram. `plans` are those of make_plans. All figures are whole
/// numbers if the times of passes are given as whole numbers.
std::string simulation_text(const RunConfig& config, std::span<const RunPlan> plans);

/// Draws the passes of a simulated step: a row per stage, and columns that are `column` long. A pass is
/// written as in schedule files, without the chunk if stages have one, and fills its columns with dashes; a
/// dot is a column in which a stage is idle. If there are more columns than fit, those of the middle are left
/// out.
std::string diagram_text(std::span<const Schedule> stages, const Simulation& simulation, double column);

}  // namespace mylos
