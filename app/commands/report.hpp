// SPDX-License-Identifier: BSD-3-Clause
// The report of a run.
#pragma once

#include <filesystem>

#include "app/launch/run_directory.hpp"
#include "io/io_thread.hpp"

namespace mylos {

/// Writes the HTML report of a run, finished or not, to `output`. For one process. Throws ExitCode::bad_data
/// if the run has no metrics file.
void write_report(IoThread& io, const RunPaths& paths, const std::filesystem::path& output);

}  // namespace mylos
