// SPDX-License-Identifier: BSD-3-Clause
// Inspect: the content of a run, checkpoint, token file or metrics file, as text.
#pragma once

#include <filesystem>
#include <string>

#include "io/io_thread.hpp"

namespace mylos {

/// Recognises the kind of `path` by its content. Throws ExitCode::bad_data if it is of another kind or
/// incomplete. For one process.
std::string inspect(IoThread& io, const std::filesystem::path& path);

}  // namespace mylos
