// SPDX-License-Identifier: BSD-3-Clause
// manifest.json of a checkpoint: what its files hold and the digests of all their bytes. It carries a digest
// of itself.
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
  std::string dataset;  ///< of version 1: the dataset that the piece belongs to, empty for everything else
};

/// A tensor of a file, cut as its writers had it. Version 1 has none: its pieces hold the tensors too.
struct ManifestTensor {
  struct Part {
    Box box;
    std::string digest;  ///< of its elements, row-major
  };
  PlacedTensor placed;
  std::vector<Part> parts;
};

/// A larger one is not read.
inline constexpr std::size_t max_manifest_bytes = std::size_t{64} << 20U;

/// Pieces and tensors together are all bytes of the file.
struct ManifestFile {
  std::string name;
  std::int64_t bytes = 0;
  std::vector<ManifestPiece> pieces;
  std::vector<ManifestTensor> tensors;
};

struct Manifest {
  static constexpr std::int64_t newest_version = 2;
  std::int64_t version = newest_version;
  std::int64_t step = 0;
  std::vector<ManifestFile> files;
};

/// The pieces of a file between its tensors and around them, without digests.
std::vector<ManifestPiece> pieces_around(const std::vector<PlacedTensor>& tensors, std::int64_t bytes);

/// The text of manifest.json, and back. `read_manifest` throws ExitCode::bad_data naming the file for
/// whatever is not a whole manifest of a known version; it looks at no other file.
std::string manifest_text(const Manifest& manifest);
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// The manifest, if the files have the sizes that it gives and it is of `step`; otherwise throws
/// ExitCode::bad_data.
Manifest manifest_of_whole(const std::filesystem::path& checkpoint,
                           std::optional<std::int64_t> step = std::nullopt);

/// Which digests are checked, and how.
struct DigestCheck {
  int first = 0;  ///< every `stride`-th from this on
  int stride = 1;
  int threads = 1;
  bool from_disk = false;  ///< past this node's page cache, if the file system allows it
};

/// Returns what does not match, a line each.
std::vector<std::string> check_digests(const std::filesystem::path& checkpoint, const Manifest& manifest,
                                       const DigestCheck& check);

}  // namespace mylos
