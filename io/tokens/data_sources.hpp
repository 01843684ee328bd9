// SPDX-License-Identifier: BSD-3-Clause
// Data sources: the token files that a deck names as train and valid in its section [data].
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokens/token_file.hpp"

namespace mylos {

/// A glob(3) pattern for token files of one format; a backslash quotes the next character.
struct DataPattern {
  std::string glob;
  TokenFormat format = TokenFormat::llmc;
};

/// Token files that are read together, in epochs of their own.
struct DataSource {
  std::string text;  ///< as the deck writes it
  std::vector<DataPattern> patterns;
  std::int64_t weight = 1;  ///< its share of the samples is this divided by the sum of all weights
};

struct DataFile {
  std::filesystem::path path;
  TokenFormat format = TokenFormat::llmc;
};

inline constexpr std::int64_t most_weight_units = 100000;
inline constexpr std::size_t most_sources = 64;

/// Parses "a*.bin:0.7, nanogpt=b.bin:0.3": patterns of file names, each prefixed with `nanogpt=` if its files
/// have no header, and all or none of them followed by a colon and a weight ("0.25", "1e-3"). A pattern may
/// begin with a home directory or a variable (`expand_path`). Without weights all patterns form one source. A
/// backslash before a comma, a colon or any other character makes it part of a name. Weights are scaled to
/// whole numbers without a common divisor. Throws ExitCode::usage if `text` is malformed, if it has more than
/// `most_sources` weighted sources, or if the sum of the scaled weights exceeds `most_weight_units`.
std::vector<DataSource> parse_sources(std::string_view text);

/// Like `parse_sources`, for an evaluation, which reads its files once, in order. Throws ExitCode::usage if
/// `text` has several weighted sources.
std::vector<DataSource> parse_validation_sources(std::string_view text);

/// The files of `source`: pattern by pattern, and within a pattern in byte order of their names. Of what a
/// pattern with wildcards matches, the files that mylos writes next to token files and its run directories
/// are left out; each such pattern adds a line to `left_out`. Throws ExitCode::usage if a pattern matches no
/// file, ExitCode::io if a folder cannot be read.
std::vector<DataFile> files_of(const DataSource& source, std::vector<std::string>* left_out = nullptr);

}  // namespace mylos
