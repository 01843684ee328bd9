// SPDX-License-Identifier: BSD-3-Clause
// The texts of `mylos train --dry-run`.
#pragma once

#include <string>

#include "app/run_config.hpp"
#include "parallel/plan/run_plan.hpp"

namespace mylos {

std::string plan_text(const RunConfig& config, const RunPlan& plan);

/// Tabulates what each rank holds of the model and of a batch: a header and one line per rank.
std::string layout_text(const RunConfig& config);

}  // namespace mylos
