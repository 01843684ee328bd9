// SPDX-License-Identifier: BSD-3-Clause
// html_diagram: the schedule of a pipeline, simulated and traced, as a card of the HTML report.
#pragma once

#include <cstdint>
#include <string>

#include "io/report/step_diagram.hpp"

namespace mylos::html {

/// Appends the card of step `step`, or nothing if no rank was traced. The simulation and the traced step are
/// one above the other, with a row per rank, on one scale of time; wide ones scroll within the card. A table
/// has the same values.
void write_diagram(std::string& out, const StepDiagram& diagram, std::int64_t step);

}  // namespace mylos::html
