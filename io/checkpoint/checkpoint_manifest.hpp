// SPDX-License-Identifier: BSD-3-Clause
// manifest.json of a checkpoint: the sizes of its files and the XXH3-128 digests of their pieces.
//
// A file is cut into pieces of at most 64 MiB, and also where a dataset begins or ends, so that a piece that
// does not match its digest names the dataset it spoils. The manifest carries a digest of itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.hpp"

namespace mylos {

inline constexpr std::int64_t max_piece_bytes = std::int64_t{64} << 20U;

/// The bytes of a file from the end of the piece before it to `end`.
struct ManifestPiece {
  std::int64_t end = 0;
  std::string digest;   ///< XXH3-128, 32 hexadecimal digits
  std::string dataset;  ///< the dataset that the piece belongs to; empty for HDF5's own structures and text
};

struct ManifestFile {
  std::string name;
  std::vector<ManifestPiece> pieces;

  std::int64_t bytes() const { return pieces.empty() ? 0 : pieces.back().end; }
  std::int64_t begin(std::size_t piece) const { return piece == 0 ? 0 : pieces[piece - 1].end; }
};

struct Manifest {
  std::int64_t step = 0;
  std::vector<ManifestFile> files;
};

/// The bytes [begin, end) of the dataset of that name.
struct DatasetExtent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string dataset;
};

/// 128 bits as XXH3 gives them.
struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  std::string text() const;
};

/// Cuts a file of `bytes` bytes into pieces without digests. `extents` do not overlap.
ManifestFile cut_into_pieces(const std::string& name, std::int64_t bytes, std::vector<DatasetExtent> extents);

/// The digest of [begin, end) of a file; throws ExitCode::io where it cannot be read.
Digest digest_of(const std::filesystem::path& file, std::int64_t begin, std::int64_t end);

/// The text of manifest.json, and back. `read_manifest` throws ExitCode::bad_data naming the file for
/// whatever is not a whole manifest of a known version; it looks at no other file.
std::string manifest_text(const Manifest& manifest);
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// Throws ExitCode::bad_data unless the files have the sizes that the manifest gives.
void check_sizes(const std::filesystem::path& checkpoint, const Manifest& manifest);

/// Checks every `stride`-th piece from `first` on against its digest; returns what does not match, a line
/// each.
std::vector<std::string> check_digests(const std::filesystem::path& checkpoint, const Manifest& manifest,
                                       std::size_t first, std::size_t stride);

}  // namespace mylos
