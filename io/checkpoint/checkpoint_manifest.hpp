// SPDX-License-Identifier: BSD-3-Clause
// manifest.json of a checkpoint: what its files hold, the digests of all their bytes, and a digest of the
// manifest itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/tensor_file.hpp"

namespace mylos {

/// The bytes [begin, end) of a file.
struct ManifestPiece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string digest;
};

/// A tensor of a file, in the parts that the ranks wrote.
struct ManifestTensor {
  struct Part {
    Box box;
    std::string digest;  ///< of its elements, row-major
  };
  PlacedTensor placed;
  std::vector<Part> parts;
};

/// A larger manifest is neither written nor read.
inline constexpr std::size_t max_manifest_bytes = std::size_t{64} << 20U;

/// Pieces and tensors together cover all bytes of the file.
struct ManifestFile {
  std::string name;
  std::int64_t bytes = 0;
  std::vector<ManifestPiece> pieces;
  std::vector<ManifestTensor> tensors;
};

struct Manifest {
  static constexpr std::int64_t format_version = 2;
  std::int64_t step = 0;
  std::vector<ManifestFile> files;
};

/// The pieces of a file before, between and after its tensors, without digests.
std::vector<ManifestPiece> pieces_around(const std::vector<PlacedTensor>& tensors, std::int64_t bytes);

/// Compose and read the text of manifest.json. `read_manifest` reads no other file. It throws
/// ExitCode::bad_data naming the file if the file is not a whole manifest of this format version.
std::string manifest_text(const Manifest& manifest);
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// The manifest of `checkpoint`. Throws ExitCode::bad_data if it is not of `step`, or if a file is missing or
/// does not have the size that the manifest gives.
Manifest read_whole_manifest(const std::filesystem::path& checkpoint,
                             std::optional<std::int64_t> step = std::nullopt);

/// Which digests are checked, and how.
struct DigestCheck {
  int first = 0;  ///< checks digests first, first + stride, ...
  int stride = 1;
  int threads = 1;
  bool from_disk = false;  ///< calls TensorFile::bypass_cache first
};

/// Returns one line per mismatch.
std::vector<std::string> check_digests(const std::filesystem::path& checkpoint, const Manifest& manifest,
                                       const DigestCheck& check);

}  // namespace mylos
