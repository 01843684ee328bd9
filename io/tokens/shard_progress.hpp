// SPDX-License-Identifier: BSD-3-Clause
// How far a corpus has been written to shards, so that an interrupted run can be continued.
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
  /// Names and values of the settings that must not change when the run is continued.
  std::vector<std::pair<std::string, std::string>> settings;
  std::array<ShardPosition, 2> positions;  ///< of training and validation
  bool done = false;
};

/// Replaces `file`; throws ExitCode::io.
void write_progress(const std::filesystem::path& file, const ShardProgress& progress);

/// Empty if there is no such file. Throws ExitCode::bad_data naming the file if it is malformed.
std::optional<ShardProgress> read_progress(const std::filesystem::path& file);

/// Throws ExitCode::usage if a setting of `now` differs from that of `before`, which was read from `file`;
/// the message names `file` and the setting.
void check_same_settings(const std::filesystem::path& file, const ShardProgress& before,
                         const ShardProgress& now);

}  // namespace mylos
