// SPDX-License-Identifier: BSD-3-Clause
// plan_run: how a finished run compares with its plan.
#pragma once

#include <string>

#include "app/deck/command_line.hpp"

namespace mylos {

/// `mylos plan RUN`: prints, row by row, what the run in `folder` has needed and taken beside its plan.
/// Returns the exit code. Throws ExitCode::usage if the folder holds no run with metrics of this version.
int plan_run(const CommandLine& line, const std::string& folder);

}  // namespace mylos
