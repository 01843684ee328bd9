// SPDX-License-Identifier: BSD-3-Clause
#include "tests/io/checkpoint_mutator.hpp"

#include <algorithm>
#include <fcntl.h>
#include <optional>

#include "io/checkpoint/checkpoint_manifest.hpp"
#include "io/json.hpp"

namespace mylos::test {

namespace {

/// Writes the manifest that an attacker would write for the current files.
void recompute_manifest(const fs::path& checkpoint, Manifest manifest) {
  for (ManifestFile& file : manifest.files) {
    const TensorFile content(checkpoint / file.name, O_RDONLY);
    file.bytes = static_cast<std::int64_t>(fs::file_size(checkpoint / file.name));
    std::erase_if(file.tensors,
                  [&](const ManifestTensor& tensor) { return tensor.placed.end() > file.bytes; });
    std::vector<PlacedTensor> placed;
    for (ManifestTensor& tensor : file.tensors) {
      placed.push_back(tensor.placed);
      for (ManifestTensor::Part& part : tensor.parts)
        part.digest = content.digest_of(tensor.placed, part.box).text();
    }
    file.pieces = pieces_around(placed, file.bytes);
    for (ManifestPiece& piece : file.pieces) piece.digest = content.digest_of(piece.begin, piece.end).text();
  }
  spill(checkpoint / "manifest.json", manifest_text(manifest));
}

/// Makes the digest in a changed manifest match the manifest, if it is still JSON.
void recompute_own_digest(const fs::path& checkpoint) {
  const std::optional<Json> root = Json::parse_if_whole(slurp(checkpoint / "manifest.json"));
  if (!root || !root->is_object()) return;
  std::vector<Json::Member> members = root->without("digest").members();
  members.emplace_back("digest", digest_of(Json::object(members).dump()).text());
  spill(checkpoint / "manifest.json", Json::object(members).dump());
}

}  // namespace

std::string CheckpointMutator::changed(std::string content) {
  const std::size_t at = below(content.size());
  const std::size_t length = std::min(content.size() - at, 1 + below(64));
  switch (below(6)) {
    case 0:
      content[at] = static_cast<char>(content[at] ^ (1U << below(8)));
      break;
    case 1:
      for (std::size_t i = 0; i < length; ++i) content[at + i] = static_cast<char>(random_());
      break;
    case 2:
      content.resize(at);
      break;
    case 3:
      content.insert(at, std::string(length, '\0'));
      break;
    case 4:
      std::fill_n(content.begin() + static_cast<std::ptrdiff_t>(at), length, below(2) == 0 ? '\0' : '\xff');
      break;
    default: {
      const std::size_t from = below(content.size() - length);
      const std::string block = content.substr(from, length);
      content.replace(at, length, block);
    }
  }
  return content;
}

Mutation CheckpointMutator::mutate(const fs::path& checkpoint) {
  const Manifest manifest = read_manifest(checkpoint);
  vouches_ = !vouches_;
  const std::string some = manifest.files[below(manifest.files.size())].name;
  const std::string name = below(3) == 0 ? "manifest.json" : some;
  const std::string before = slurp(checkpoint / name);
  const std::string after = changed(before);
  if (after == before) return {};
  spill(checkpoint / name, after);
  if (vouches_ && name == "manifest.json") recompute_own_digest(checkpoint);
  if (vouches_ && name != "manifest.json") recompute_manifest(checkpoint, manifest);
  return {.file = name, .vouched_for = vouches_};
}

}  // namespace mylos::test
