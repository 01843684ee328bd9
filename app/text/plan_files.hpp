// SPDX-License-Identifier: BSD-3-Clause
// What a run finds on this machine: its data and its directory.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/setup.hpp"

namespace mylos {

/// The files that a plan reads to make the schedule.
std::vector<std::filesystem::path> inputs_of(const Setup& setup, const std::string& deck);

/// The end of the plan of `mylos train --dry-run`: what there is of the run's files, and how far the tokens
/// reach. All problems are warnings, since the run may be meant for another machine. `restart`: the
/// value of --restart, if the run would be continued.
std::string files_text(const Setup& setup, const std::optional<std::string>& restart);

}  // namespace mylos
