// SPDX-License-Identifier: BSD-3-Clause
// The texts of `mylos train --dry-run`.
#pragma once

#include <string>
#include <vector>

#include "app/deck/run_config.hpp"
#include "core/layout/parameter_table.hpp"
#include "parallel/plan/run_plan.hpp"

namespace mylos {

std::string plan_text(const RunConfig& config, const RunPlan& plan);

/// What else holds of model FLOPs, beside 6N + 12LCT per token; it begins with a comma, or is empty.
std::string flops_note(bool has_experts, bool has_depths);

/// Returns the rows as a table; each column is as wide as its widest cell.
std::string aligned(const std::vector<std::vector<std::string>>& rows);

/// The units of a rank: "embedding, blocks 0 to 8, tied matrix".
std::string units_text(const ParameterTable& table);

/// Tabulates what each rank holds of the model and of a batch: a header and one line per rank.
std::string layout_text(const RunConfig& config);

}  // namespace mylos
