// SPDX-License-Identifier: BSD-3-Clause
#include "io/checkpoint/checkpoint_manifest.hpp"

#include <algorithm>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <set>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/version.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "io/parallel_for.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr const char* format_name = "mylos checkpoint";
constexpr std::int64_t max_file_bytes = std::int64_t{1} << 50U;
constexpr std::size_t max_dimensions = 8;
constexpr std::size_t max_parts = std::size_t{1} << 14U;  // of a tensor

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() < 64 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
         });
}

Json extents_json(const std::vector<std::int64_t>& extents) {
  return Json::array(std::vector<Json>(extents.begin(), extents.end()));
}

// --- Reading

ManifestTensor parse_tensor(const Json& entry, std::int64_t file_bytes) {
  ManifestTensor tensor;
  TensorInfo& info = tensor.placed.info;
  info.name = entry.text("name");
  info.shape = entry.integers("shape");
  tensor.placed.offset = entry.integer("offset");
  bool is_good = !info.shape.empty() && info.shape.size() <= max_dimensions && tensor.placed.offset >= 0 &&
                 tensor.placed.offset <= file_bytes;
  std::int64_t room =
      is_good ? (file_bytes - tensor.placed.offset) / static_cast<std::int64_t>(sizeof(float)) : 0;
  for (const std::int64_t extent : info.shape) {
    is_good = is_good && extent >= 1 && extent <= room;
    if (is_good) room /= extent;
  }
  if (!is_good) {
    fail(ExitCode::bad_data, "{} has shape {} at byte {} of {}", info.name, info.shape_text(),
         tensor.placed.offset, file_bytes);
  }
  std::vector<Box> boxes;
  for (const Json& part : entry.elements("parts")) {
    tensor.parts.push_back({.box = {.start = part.integers("start"), .count = part.integers("count")},
                            .digest = part.text("xxh3_128")});
    boxes.push_back(tensor.parts.back().box);
  }
  if (boxes.size() > max_parts || !cover_once(info.shape, std::move(boxes)))
    fail(ExitCode::bad_data, "the parts of {} do not cover it exactly once", info.name);
  return tensor;
}

/// Tensors, and pieces for the bytes around them.
void parse_tensors_and_pieces(const Json& entry, ManifestFile& file) {
  file.bytes = entry.integer("bytes");
  if (file.bytes < 0 || file.bytes > max_file_bytes)
    fail(ExitCode::bad_data, "{} has {} bytes", file.name, file.bytes);
  std::vector<PlacedTensor> placed;
  std::set<std::string> names;
  for (const Json& tensor : entry.elements("tensors")) {
    file.tensors.push_back(parse_tensor(tensor, file.bytes));
    placed.push_back(file.tensors.back().placed);
    if (!names.insert(placed.back().info.name).second)
      fail(ExitCode::bad_data, "{} is listed twice", placed.back().info.name);
  }
  std::ranges::sort(placed, {}, &PlacedTensor::offset);
  for (std::size_t i = 1; i < placed.size(); ++i) {
    if (placed[i].offset < placed[i - 1].end())
      fail(ExitCode::bad_data, "{} and {} overlap", placed[i - 1].info.name, placed[i].info.name);
  }
  file.pieces = pieces_around(placed, file.bytes);
  const std::vector<Json> digests = entry.elements("pieces");
  if (digests.size() != file.pieces.size())
    fail(ExitCode::bad_data, "{} has {} pieces, not {}", file.name, digests.size(), file.pieces.size());
  for (std::size_t i = 0; i < digests.size(); ++i) file.pieces[i].digest = digests[i].text("xxh3_128");
}

Manifest parse_manifest(const std::string& text) {
  const Json root = Json::parse(text);
  if (root.text("format") != format_name) fail(ExitCode::bad_data, "not a mylos checkpoint");
  if (const std::int64_t version = root.integer("version"); version != Manifest::format_version) {
    fail(ExitCode::bad_data, "format version {}; this mylos reads version {}", version,
         Manifest::format_version);
  }
  if (digest_of(root.without("digest").dump()).text() != root.text("digest"))
    fail(ExitCode::bad_data, "does not match its own digest");

  Manifest manifest;
  manifest.step = root.integer("step");
  if (manifest.step < 0) fail(ExitCode::bad_data, "step {} is negative", manifest.step);
  std::set<std::string> names;
  for (const Json& entry : root.elements("files")) {
    ManifestFile& file = manifest.files.emplace_back();
    file.name = entry.text("name");
    if (!is_plain_name(file.name)) fail(ExitCode::bad_data, "a file has the name \"{}\"", file.name);
    if (!names.insert(file.name).second) fail(ExitCode::bad_data, "{} is listed twice", file.name);
    parse_tensors_and_pieces(entry, file);
  }
  for (const char* needed : {"weights.h5", "state.json"}) {
    if (!names.contains(needed)) fail(ExitCode::bad_data, "lists no {}", needed);
  }
  return manifest;
}

// --- Checking

std::string describe(const ManifestPiece& piece) {
  return fmt::format("bytes {} to {} (structure of the file)", piece.begin, piece.end);
}

/// The tensor or piece in which a file that ends at `bytes` is cut off.
std::string describe_cut(const ManifestFile& file, std::int64_t bytes) {
  for (const ManifestTensor& tensor : file.tensors) {
    if (tensor.placed.offset <= bytes && bytes < tensor.placed.end())
      return "; cut off in dataset " + tensor.placed.info.name;
  }
  for (const ManifestPiece& piece : file.pieces) {
    if (piece.begin <= bytes && bytes < piece.end) return "; cut off in " + describe(piece);
  }
  return "";
}

}  // namespace

std::vector<ManifestPiece> pieces_around(const std::vector<PlacedTensor>& tensors, std::int64_t bytes) {
  std::vector<std::pair<std::int64_t, std::int64_t>> extents;
  for (const PlacedTensor& tensor : tensors) extents.emplace_back(tensor.offset, tensor.end());
  std::ranges::sort(extents);
  extents.emplace_back(bytes, bytes);
  std::vector<ManifestPiece> pieces;
  std::int64_t begin = 0;
  for (const auto& [offset, end] : extents) {
    if (begin < offset) pieces.push_back({.begin = begin, .end = offset, .digest = ""});
    begin = end;
  }
  return pieces;
}

std::string manifest_text(const Manifest& manifest) {
  std::vector<Json> files;
  for (const ManifestFile& file : manifest.files) {
    std::vector<Json> pieces;
    for (const ManifestPiece& piece : file.pieces) {
      pieces.push_back(
          Json::object({{"begin", piece.begin}, {"end", piece.end}, {"xxh3_128", piece.digest}}));
    }
    std::vector<Json> tensors;
    for (const ManifestTensor& tensor : file.tensors) {
      std::vector<Json> parts;
      for (const ManifestTensor::Part& part : tensor.parts) {
        parts.push_back(Json::object({{"start", extents_json(part.box.start)},
                                      {"count", extents_json(part.box.count)},
                                      {"xxh3_128", part.digest}}));
      }
      tensors.push_back(Json::object({{"name", tensor.placed.info.name},
                                      {"shape", extents_json(tensor.placed.info.shape)},
                                      {"offset", tensor.placed.offset},
                                      {"parts", Json::array(parts)}}));
    }
    files.push_back(Json::object({{"name", file.name},
                                  {"bytes", file.bytes},
                                  {"pieces", Json::array(pieces)},
                                  {"tensors", Json::array(tensors)}}));
  }
  std::vector<Json::Member> root = {{"format", format_name},
                                    {"version", Manifest::format_version},
                                    {"mylos", version()},
                                    {"step", manifest.step},
                                    {"files", Json::array(files)}};
  root.emplace_back("digest", digest_of(Json::object(root).dump()).text());
  return Json::object(root).dump() + "\n";
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "manifest.json";
  std::error_code error;
  if (!fs::is_directory(checkpoint, error))
    fail(ExitCode::bad_data, "no checkpoint at {}", checkpoint.string());
  if (!fs::is_regular_file(file, error)) fail(ExitCode::bad_data, "{} is missing", file.string());
  const std::string text = read_text_file(file, max_manifest_bytes);
  return at_place(file.string(), [&] { return parse_manifest(text); });
}

Manifest read_whole_manifest(const fs::path& checkpoint, std::optional<std::int64_t> step) {
  Manifest manifest = read_manifest(checkpoint);
  if (manifest.step != step.value_or(manifest.step))
    fail(ExitCode::bad_data, "{}: its manifest.json is of step {}", checkpoint.string(), manifest.step);
  for (const ManifestFile& file : manifest.files) {
    const fs::path path = checkpoint / file.name;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) fail(ExitCode::bad_data, "{} is missing", path.string());
    const auto bytes = static_cast<std::int64_t>(fs::file_size(path, error));
    if (error) fail(ExitCode::io, "cannot read {}: {}", path.string(), error.message());
    if (bytes == file.bytes) continue;
    fail(ExitCode::bad_data, "{} has {} bytes; its manifest says {}{}", path.string(), bytes, file.bytes,
         describe_cut(file, bytes));
  }
  return manifest;
}

std::vector<std::string> check_digests(const fs::path& checkpoint, const Manifest& manifest,
                                       const DigestCheck& check) {
  // Each check returns the mismatch of one digest, or "".
  std::vector<std::function<std::string()>> checks;
  int count = 0;
  const auto add = [&](std::function<std::string()> problem) {
    if (count++ % check.stride == check.first) checks.push_back(std::move(problem));
  };
  std::deque<TensorFile> files;
  for (const ManifestFile& file : manifest.files) {
    const fs::path path = checkpoint / file.name;
    TensorFile& content = files.emplace_back(path, O_RDONLY);
    if (check.from_disk) content.bypass_cache();
    content.read_ahead();
    for (const ManifestPiece& piece : file.pieces) {
      add([&content, &piece, path]() -> std::string {
        if (content.digest_of(piece.begin, piece.end).text() == piece.digest) return "";
        return fmt::format("{}: {} do not match their digest", path.string(), describe(piece));
      });
    }
    for (const ManifestTensor& tensor : file.tensors) {
      for (const ManifestTensor::Part& part : tensor.parts) {
        add([&content, &tensor, &part, path]() -> std::string {
          if (content.digest_of(tensor.placed, part.box).text() == part.digest) return "";
          return fmt::format("{}: dataset {}, ({}) elements from ({}) on, do not match their digest",
                             path.string(), tensor.placed.info.name, join(part.box.count, ", "),
                             join(part.box.start, ", "));
        });
      }
    }
  }
  std::vector<std::string> problems(checks.size());
  parallel_for(checks.size(), check.threads, [&](std::size_t i) { problems[i] = checks[i](); });
  std::erase(problems, "");
  return problems;
}

}  // namespace mylos
