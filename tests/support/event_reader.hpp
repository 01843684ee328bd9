// SPDX-License-Identifier: BSD-3-Clause
// Reads TensorBoard's event files as its readers do, written from the formats' descriptions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace mylos::test {

struct ReadScalar {
  std::int64_t step = 0;
  float value = 0.0F;
  double time = 0.0;
};

/// What a folder's event files say, in the order of their names: a SessionLog START drops what came before it
/// with its step or a later one.
struct ReadEvents {
  std::map<std::string, std::vector<ReadScalar>> scalars;                          ///< by tag
  std::map<std::string, std::vector<std::pair<std::int64_t, std::string>>> texts;  ///< by tag: step and text
  std::vector<std::int64_t> starts;  ///< steps of the SessionLog STARTs
  std::int64_t torn_bytes = 0;       ///< after the last whole records
};

/// Throws std::runtime_error for a record whose CRC is wrong, and for a file that does not begin with its
/// version.
ReadEvents read_events(const std::filesystem::path& folder);

}  // namespace mylos::test
