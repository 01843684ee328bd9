// SPDX-License-Identifier: BSD-3-Clause
// What is found under a path, in words for messages.
#pragma once

#include <filesystem>
#include <string>

namespace mylos {

/// What a name stands for, for messages: "nothing", "a file", "a folder without the right to read", "a link
/// to TARGET, which does not exist" ... Never throws because of what it finds.
std::string what_is_at(const std::filesystem::path& path);

}  // namespace mylos
