// SPDX-License-Identifier: BSD-3-Clause
// The divisions into stages among which the partitioner chooses, as a table.
#pragma once

#include <string>

#include "app/deck/run_config.hpp"

namespace mylos {

/// Tabulates the best division of `config.partition` for each number of stages.
std::string stage_plans_text(const RunConfig& config);

}  // namespace mylos
