// SPDX-License-Identifier: BSD-3-Clause
// Inspect: what a checkpoint, token file or metrics file holds, as text.
#pragma once

#include <filesystem>
#include <string>

#include "io/io_thread.hpp"

namespace mylos {

/// Recognises `path` by its content. Throws ExitCode::bad_data for what is none of these or is not whole. For
/// one process.
std::string inspect(IoThread& io, const std::filesystem::path& path);

}  // namespace mylos
