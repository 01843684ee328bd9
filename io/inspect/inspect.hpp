// SPDX-License-Identifier: BSD-3-Clause
// Inspect: the content of a run, checkpoint, model, token file or metrics file, as text.
#pragma once

#include <filesystem>
#include <string>

#include "io/io_thread.hpp"

namespace mylos {

/// Describes the file or directory `path`, whose kind it recognises by the content. Throws ExitCode::bad_data
/// if `path` does not exist or its kind is unknown, or if what is read is damaged. For one process.
std::string inspect(IoThread& io, const std::filesystem::path& path);

}  // namespace mylos
