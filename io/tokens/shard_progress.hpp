// SPDX-License-Identifier: BSD-3-Clause
// The progress of the shards of a corpus, so that an interrupted run can be continued.
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
  /// Names and values of the settings that a run that continues this one must share.
  std::vector<std::pair<std::string, std::string>> settings;
  std::array<ShardPosition, 2> positions;  ///< of training and validation
  bool done = false;
};

/// Replaces `file`; throws ExitCode::io.
void write_progress(const std::filesystem::path& file, const ShardProgress& progress);

/// Empty if there is no such file. Throws ExitCode::bad_data naming the file if it is malformed.
std::optional<ShardProgress> read_progress(const std::filesystem::path& file);

/// Throws ExitCode::usage naming the first setting of `before`, which `file` holds, that differs in `now`.
void check_same_settings(const std::filesystem::path& file, const ShardProgress& before,
                         const ShardProgress& now);

}  // namespace mylos
