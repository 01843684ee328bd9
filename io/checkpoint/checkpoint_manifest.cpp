// SPDX-License-Identifier: BSD-3-Clause
#include "io/checkpoint/checkpoint_manifest.hpp"

#include <algorithm>
#include <fcntl.h>
#include <memory>
#include <set>
#include <utility>

#include <xxhash.h>

#include "core/base/version.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr const char* format_name = "mylos checkpoint";
constexpr int format_version = 1;
constexpr std::size_t max_manifest_bytes = std::size_t{64} << 20U;
constexpr std::int64_t max_file_bytes = std::int64_t{1} << 50U;

Digest digest_from(XXH128_hash_t hash) {
  return {hash.high64, hash.low64};
}

std::string digest_of_text(const std::string& text) {
  return digest_from(XXH3_128bits(text.data(), text.size())).text();
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() < 64 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
         });
}

ManifestFile parse_file(const Json& entry) {
  ManifestFile file;
  file.name = entry.text("name");
  if (!is_plain_name(file.name)) fail(ExitCode::bad_data, "a file has the name \"{}\"", file.name);
  for (const Json& part : entry.elements("pieces")) {
    ManifestPiece piece;
    piece.end = part.integer("end");
    piece.digest = part.text("xxh3_128");
    if (part.has("dataset")) piece.dataset = part.text("dataset");
    const std::int64_t begin = file.bytes();
    if (piece.end <= begin || piece.end - begin > max_piece_bytes || piece.end > max_file_bytes) {
      fail(ExitCode::bad_data, "{} has a piece from {} to {}", file.name, begin, piece.end);
    }
    file.pieces.push_back(std::move(piece));
  }
  return file;
}

Manifest parse_manifest(const std::string& text) {
  const Json root = Json::parse(text);
  if (root.text("format") != format_name) fail(ExitCode::bad_data, "not a mylos checkpoint");
  const std::int64_t version = root.integer("version");
  if (version != format_version) {
    fail(ExitCode::bad_data, "format version {}; this mylos reads version {}", version, format_version);
  }
  if (digest_of_text(root.without("digest").dump()) != root.text("digest"))
    fail(ExitCode::bad_data, "does not match its own digest");

  Manifest manifest;
  manifest.step = root.integer("step");
  std::set<std::string> names;
  for (const Json& entry : root.elements("files")) {
    manifest.files.push_back(parse_file(entry));
    if (!names.insert(manifest.files.back().name).second) {
      fail(ExitCode::bad_data, "{} is listed twice", manifest.files.back().name);
    }
  }
  for (const char* needed : {"weights.h5", "state.json"}) {
    if (!names.contains(needed)) fail(ExitCode::bad_data, "lists no {}", needed);
  }
  return manifest;
}

std::string describe_place(const ManifestFile& file, std::size_t piece) {
  const std::string& dataset = file.pieces[piece].dataset;
  return fmt::format("bytes {} to {} ({})", file.begin(piece), file.pieces[piece].end,
                     dataset.empty() ? "structure of the file" : "dataset " + dataset);
}

}  // namespace

std::string Digest::text() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

ManifestFile cut_into_pieces(const std::string& name, std::int64_t bytes,
                             std::vector<DatasetExtent> extents) {
  std::sort(extents.begin(), extents.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  ManifestFile file{name, {}};
  const auto add_until = [&](std::int64_t end, const std::string& dataset) {
    while (file.bytes() < end)
      file.pieces.push_back({std::min(end, file.bytes() + max_piece_bytes), "", dataset});
  };
  for (const DatasetExtent& extent : extents) {
    add_until(std::min(extent.begin, bytes), "");
    add_until(std::min(extent.end, bytes), extent.dataset);
  }
  add_until(bytes, "");
  return file;
}

Digest digest_of(const fs::path& file, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t block_bytes = std::int64_t{1} << 20U;
  const FileDescriptor fd = open_file(file, O_RDONLY);
  std::vector<char> block(static_cast<std::size_t>(std::min(block_bytes, end - begin)));
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_128bits_reset(state.get());
  for (std::int64_t at = begin; at < end; at += block_bytes) {
    const auto bytes = static_cast<std::size_t>(std::min(block_bytes, end - at));
    read_fully(fd.get(), file, block.data(), bytes, at);
    XXH3_128bits_update(state.get(), block.data(), bytes);
  }
  return digest_from(XXH3_128bits_digest(state.get()));
}

std::string manifest_text(const Manifest& manifest) {
  std::vector<Json> files;
  for (const ManifestFile& file : manifest.files) {
    std::vector<Json> pieces;
    for (const ManifestPiece& piece : file.pieces) {
      std::vector<Json::Member> part = {{"end", piece.end}, {"xxh3_128", piece.digest}};
      if (!piece.dataset.empty()) part.emplace_back("dataset", piece.dataset);
      pieces.push_back(Json::object(part));
    }
    files.push_back(
        Json::object({{"name", file.name}, {"bytes", file.bytes()}, {"pieces", Json::array(pieces)}}));
  }
  std::vector<Json::Member> root = {{"format", format_name},
                                    {"version", format_version},
                                    {"mylos", version()},
                                    {"step", manifest.step},
                                    {"files", Json::array(files)}};
  root.emplace_back("digest", digest_of_text(Json::object(root).dump()));
  return Json::object(root).dump(1) + "\n";
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "manifest.json";
  std::error_code error;
  if (!fs::is_directory(checkpoint, error))
    fail(ExitCode::bad_data, "no checkpoint at {}", checkpoint.string());
  if (!fs::exists(file, error)) fail(ExitCode::bad_data, "{} is missing", file.string());
  const std::string text = read_text_file(file, max_manifest_bytes);
  try {
    return parse_manifest(text);
  } catch (const Error& reason) {
    fail(ExitCode::bad_data, "{}: {}", file.string(), reason.what());
  }
}

void check_sizes(const fs::path& checkpoint, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    const fs::path path = checkpoint / file.name;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) fail(ExitCode::bad_data, "{} is missing", path.string());
    const auto bytes = static_cast<std::int64_t>(fs::file_size(path, error));
    if (error) fail(ExitCode::io, "cannot read {}: {}", path.string(), error.message());
    if (bytes == file.bytes()) continue;
    std::string cut;
    for (std::size_t i = 0; i < file.pieces.size() && cut.empty(); ++i) {
      if (bytes < file.pieces[i].end) cut = "; cut off in " + describe_place(file, i);
    }
    fail(ExitCode::bad_data, "{} has {} bytes, its manifest says {}{}", path.string(), bytes, file.bytes(),
         cut);
  }
}

std::vector<std::string> check_digests(const fs::path& checkpoint, const Manifest& manifest,
                                       std::size_t first, std::size_t stride) {
  std::vector<std::string> problems;
  std::size_t count = 0;
  for (const ManifestFile& file : manifest.files) {
    for (std::size_t i = 0; i < file.pieces.size(); ++i, ++count) {
      if (count % stride != first) continue;
      const fs::path path = checkpoint / file.name;
      if (digest_of(path, file.begin(i), file.pieces[i].end).text() != file.pieces[i].digest) {
        problems.push_back(
            fmt::format("{}: {} do not match their digest", path.string(), describe_place(file, i)));
      }
    }
  }
  return problems;
}

}  // namespace mylos
