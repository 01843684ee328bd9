// SPDX-License-Identifier: BSD-3-Clause
// The costs of units, measured in a traced step.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/trace/trace.hpp"
#include "parallel/plan/unit_costs.hpp"

namespace mylos {

/// The seconds that a rank's units take in the passes of a traced step, as lines "unit forward input weight";
/// medians over the micro-batches; nothing if events were lost. The operations of a backward pass that is not
/// divided count as if it were.
std::string unit_times_text(const Trace& trace);

/// Returns `units` with the times of `texts`, which hold those of all ranks, in the order of the ranks: of
/// each unit, those of the first rank that has it. Returns nothing if a unit has no times.
std::optional<std::vector<UnitCost>> with_times(std::vector<UnitCost> units,
                                                std::span<const std::string> texts);

}  // namespace mylos
