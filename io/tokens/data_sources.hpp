// SPDX-License-Identifier: BSD-3-Clause
// Data sources: what [data] train and valid of a deck name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokens/token_file.hpp"

namespace mylos {

/// Names of token files of one format, as glob(3) takes them: a backslash takes a character as it is.
struct DataPattern {
  std::string glob;
  TokenFormat format = TokenFormat::llmc;
};

/// Token files that are read as one, in epochs of their own.
struct DataSource {
  std::string text;  ///< as the deck writes it
  std::vector<DataPattern> patterns;
  std::int64_t weight = 1;  ///< its share of the samples is this over the sum of all weights
};

struct DataFile {
  std::filesystem::path path;
  TokenFormat format = TokenFormat::llmc;
};

inline constexpr std::int64_t most_weight_units = 100000;
inline constexpr std::size_t most_sources = 64;

/// "a*.bin:0.7, nanogpt=b.bin:0.3": patterns of file names, each with `nanogpt=` in front if its files have
/// no header, and with a weight behind a colon. Without weights all patterns are one source. A backslash
/// before a comma, a colon or any other character makes it part of a name. Weights become whole numbers
/// without a common divisor. Throws ExitCode::usage if `text` is none of this, or if the weights' sum is then
/// above `most_weight_units`.
std::vector<DataSource> parse_sources(std::string_view text);

/// The same for an evaluation, which reads its files once, one behind the other: ExitCode::usage for weights.
std::vector<DataSource> parse_validation_sources(std::string_view text);

/// The files of `source`: pattern by pattern, and those of a pattern in the order of their names' bytes.
/// Throws ExitCode::usage if a pattern has none, ExitCode::io if a folder cannot be read.
std::vector<DataFile> files_of(const DataSource& source);

}  // namespace mylos
