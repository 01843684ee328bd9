// SPDX-License-Identifier: BSD-3-Clause
// How far the shards of a corpus have come, so that an interrupted run can be continued.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/tokens/shard_writer.hpp"

namespace mylos {

struct ShardProgress {
  /// What must be the same for a run that continues this one: names and values.
  std::vector<std::pair<std::string, std::string>> settings;
  std::array<ShardPosition, 2> positions;  ///< of training and validation
  bool done = false;
};

/// Replaces `file`; throws ExitCode::io.
void write_progress(const std::filesystem::path& file, const ShardProgress& progress);

/// None if there is no such file. Throws ExitCode::bad_data that names it if it is not what it must be.
std::optional<ShardProgress> read_progress(const std::filesystem::path& file);

/// Throws ExitCode::usage with the first setting of `before`, which `file` holds, that is another `now`.
void check_same_settings(const std::filesystem::path& file, const ShardProgress& before,
                         const ShardProgress& now);

}  // namespace mylos
