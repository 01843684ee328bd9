// SPDX-License-Identifier: BSD-3-Clause
// Makes the report of a run directory.
#pragma once

#include <filesystem>

#include "app/run_directory.hpp"
#include "io/io_thread.hpp"

namespace mylos {

/// Writes the HTML report of a run, finished or not, to `output`. For one process. Throws ExitCode::bad_data
/// if the directory does not hold a run.
void write_report(IoThread& io, const RunPaths& paths, const std::filesystem::path& output);

}  // namespace mylos
