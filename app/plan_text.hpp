// SPDX-License-Identifier: BSD-3-Clause
// The text of `mylos train --dry-run`.
#pragma once

#include <string>

#include "app/run_config.hpp"
#include "parallel/plan/run_plan.hpp"

namespace mylos {

std::string plan_text(const RunConfig& config, const RunPlan& plan);

}  // namespace mylos
