// SPDX-License-Identifier: BSD-3-Clause
// What a restart takes over from the run that it continues, before it opens a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "app/launch/run_directory.hpp"
#include "app/launch/setup.hpp"

namespace mylos {

/// The shape of the model of a run that is continued, whose initial weights may be gone: that of its resolved
/// deck or, if there is none, that of the model at `path`. A ShapeOfModel.
ModelConfig shape_to_continue(const Deck& deck, const std::string& path);

/// In a layout that is that of the run that is continued, makes the automatic choices as in its resolved deck
/// (OnRestart::repeats), except backends that cannot be used, so that the restart can be bitwise identical.
void reuse_choices(Setup& setup, const RunPaths& paths);

/// Lets a restart find what the run found from the folder where it was started. With the resolved deck of a
/// run, relative paths begin in that folder; with another deck, only data that are not found from here.
/// Returns what to say about that.
std::vector<std::string> find_from_folder(Setup& setup, const std::string& deck_name);

}  // namespace mylos
