// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/content_kind.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <sys/stat.h>

#include "core/base/error.hpp"
#include "io/file_util.hpp"
#include "io/utf8.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

using std::string_view_literals::operator""sv;

struct Format {
  std::string_view magic;
  std::size_t offset;
  ContentKind kind;
};

constexpr ContentKind token_file = {"a token file", ""};
constexpr ContentKind merge_ranks = {merge_ranks_kind, ""};
constexpr ContentKind library = {library_kind, ""};
constexpr ContentKind utf16 = {"a text in UTF-16", "iconv -f UTF-16 -t UTF-8 {}"};
constexpr ContentKind utf32 = {"a text in UTF-32", "iconv -f UTF-32 -t UTF-8 {}"};
constexpr ContentKind zip = {"a zip archive (.zip, .npz, .pt, .docx ...)", "unzip -p {}"};
constexpr ContentKind image = {"an image", ""};
constexpr ContentKind sound = {"sound or video", ""};
constexpr ContentKind llmc_model = {"a model or tokenizer of llm.c", ""};

/// A longer magic number comes before one that it begins with. Formats whose magic number may begin a text,
/// such as ORC's, are left to `binary_kind`.
constexpr Format formats[] = {
    {"\x88\xd8\x34\x01"sv, 0, token_file},  // 20240520
    {"\x8a\xd8\x34\x01"sv, 0, {"an evaluation file of llm.c", ""}},
    {"\xa1\xd9\x34\x01"sv, 0, {"a token file with 32-bit ids, which llm.c writes for Llama", ""}},
    {"\xc6\xd7\x34\x01"sv, 0, llmc_model},
    {"\xc8\xd7\x34\x01"sv, 0, llmc_model},
    {"#version: 0."sv, 0, merge_ranks},
    {"IQ== 0\n"sv, 0, merge_ranks},
    {"IQ== 0\r\n"sv, 0, merge_ranks},
    {"\xff\xfe\0\0"sv, 0, utf32},
    {"\0\0\xfe\xff"sv, 0, utf32},
    {"\xff\xfe"sv, 0, utf16},
    {"\xfe\xff"sv, 0, utf16},
    {"\x84\x31\x95\x33"sv, 0, {"a text in GB 18030", "iconv -f GB18030 -t UTF-8 {}"}},
    {"\x1f\x8b\x08"sv, 0, {"gzip data", "zcat {}"}},
    {"\x1f\x9d"sv, 0, {"data compressed by compress", "zcat {}"}},
    {"\x28\xb5\x2f\xfd"sv, 0, {"Zstandard data", "zstdcat {}"}},
    {"\x2a\x4d\x18"sv, 1, {"Zstandard data", "zstdcat {}"}},
    {"\xfd\x37zXZ\0"sv, 0, {"xz data", "xzcat {}"}},
    {"LZIP\x01"sv, 0, {"lzip data", "lzip -dc {}"}},
    {"1AY&SY"sv, 4, {"bzip2 data", "bzcat {}"}},
    {"\x04\x22\x4d\x18"sv, 0, {"LZ4 data", "lz4cat {}"}},
    {"\x02\x21\x4c\x18"sv, 0, {"LZ4 data", "lz4cat {}"}},
    {"\xff\x06\0\0sNaPpY"sv, 0, {"snappy data", "snzip -dc {}"}},
    {"PK\x03\x04"sv, 0, zip},
    {"PK\x05\x06"sv, 0, zip},
    {"7z\xbc\xaf\x27\x1c"sv, 0, {"a 7z archive", "7z x -so {}"}},
    {"Rar!\x1a\x07"sv, 0, {"a rar archive", "unrar p -inul {}"}},
    {"ustar\0"sv, 257, {"a tar archive", "tar -xOf {}"}},
    {"ustar  \0"sv, 257, {"a tar archive", "tar -xOf {}"}},
    {"PAR1"sv,
     0,
     {"a Parquet file",
      "duckdb -c \"COPY (SELECT text FROM read_parquet('{}')) TO '/dev/stdout' (FORMAT json)\"", true}},
    {"ARROW1\0\0"sv, 0, {"an Arrow file", ""}},
    {"\xff\xff\xff\xff"sv, 0, {"an Arrow stream", ""}},
    {"Obj\x01"sv, 0, {"an Avro file", ""}},
    {"\x89HDF\r\n\x1a\n"sv, 0, {"an HDF5 file", ""}},
    {"CDF\x01"sv, 0, {"a NetCDF file", ""}},
    {"\x93NUMPY"sv, 0, {numpy_kind, ""}},
    {"MMIDIDX\0\0"sv, 0, {"an index of Megatron-LM", ""}},
    {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9"sv, 0, {"a PyTorch file", ""}},
    {"\x80\x04\x95"sv, 0, {"a Python pickle", ""}},
    {"\x80\x05\x95"sv, 0, {"a Python pickle", ""}},
    {"\x80\x02"sv, 0, {"a Python pickle", ""}},
    {"\x80\x03"sv, 0, {"a Python pickle", ""}},
    {"\0\0\0\0{\""sv, 4, {"a safetensors file", ""}},
    {"GGUF\x02\0"sv, 0, {"a GGUF file", ""}},
    {"GGUF\x03\0"sv, 0, {"a GGUF file", ""}},
    {"SQLite format 3\0"sv, 0, {"an SQLite database", ""}},
    {"%PDF-"sv, 0, {"a PDF file", "pdftotext {} -"}},
    {"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv, 0, {"a file of Microsoft Office", ""}},
    {"\x7f\x45LF"sv, 0, library},
    {"\0asm"sv, 0, {"a WebAssembly module", ""}},
    {"\xca\xfe\xba\xbe"sv, 0, library},
    {"\x89PNG\r\n\x1a\n"sv, 0, image},
    {"\xff\xd8\xff"sv, 0, image},
    {"GIF87a"sv, 0, image},
    {"GIF89a"sv, 0, image},
    {"II*\0"sv, 0, image},
    {"MM\0*"sv, 0, image},
    {"WEBPVP8"sv, 8, image},
    {"WAVEfmt "sv, 8, sound},
    {"OggS\0"sv, 0, sound},
    {"fLaC\0"sv, 0, sound},
    {"ID3\x03\0"sv, 0, sound},
    {"ID3\x04\0"sv, 0, sound},
    {"\x1a\x45\xdf\xa3"sv, 0, sound},
};

bool is_control(char c) {
  constexpr std::string_view usual = "\t\n\v\f\r\b\x1b\x1a";
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && usual.find(c) == std::string_view::npos) || byte == 0x7f;
}

/// Whether bytes look like text with `width` bytes per character, of which all but the one at `place` are NUL
/// in at least half of the characters, as in English, and which has no control characters.
bool is_wide(std::string_view head, std::size_t width, std::size_t place) {
  std::size_t narrow = 0;
  const std::size_t characters = head.size() / width;
  for (std::size_t i = 0; i < characters; ++i) {
    const std::string_view character = head.substr(i * width, width);
    if (std::ranges::count(character, '\0') != static_cast<std::ptrdiff_t>(width) - 1) continue;
    if (character[place] == '\0') continue;
    if (is_control(character[place])) return false;
    ++narrow;
  }
  return characters > 0 && 2 * narrow >= characters;
}

ContentKind binary_kind(std::string_view head) {
  if (head.find('\0') != std::string_view::npos) {
    if (is_wide(head, 4, 0)) return {"a text in UTF-32", "iconv -f UTF-32LE -t UTF-8 {}"};
    if (is_wide(head, 4, 3)) return {"a text in UTF-32", "iconv -f UTF-32BE -t UTF-8 {}"};
    if (is_wide(head, 2, 0)) return {"a text in UTF-16", "iconv -f UTF-16LE -t UTF-8 {}"};
    if (is_wide(head, 2, 1)) return {"a text in UTF-16", "iconv -f UTF-16BE -t UTF-8 {}"};
    return {"binary data (it has NUL bytes)", ""};
  }
  if (10 * static_cast<std::size_t>(std::ranges::count_if(head, is_control)) > head.size())
    return {"binary data (it has many control characters)", ""};
  return {};
}

std::string_view trimmed_front(std::string_view text) {
  if (text.starts_with(utf8_mark)) text.remove_prefix(utf8_mark.size());
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

/// Whether `text` is "process N on HOST", as in a lock file.
bool is_lock(std::string_view text) {
  constexpr std::string_view begin = "process ";
  if (!text.starts_with(begin)) return false;
  text.remove_prefix(begin.size());
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return digits > 0 && text.substr(digits).starts_with(" on ") && text.find('\n') + 1 == text.size();
}

bool has_keys(std::string_view head, const auto&... keys) {
  return trimmed_front(head).starts_with('{') && (... && (head.find(keys) != std::string_view::npos));
}

}  // namespace

std::string shell_word(const std::string& file) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/+,:@%=";
  if (!file.empty() && file.find_first_not_of(plain) == std::string::npos) return file;
  std::string word = "'";
  for (const char c : file) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string content_head(const fs::path& file) {
  const FileDescriptor fd = open_file(file, O_RDONLY | O_NONBLOCK);  // does not wait for a pipe's writer
  struct stat info {};
  check_call(::fstat(fd.get(), &info), "read", file);
  if (!S_ISREG(info.st_mode)) fail(ExitCode::io, "cannot read {}: not a regular file", file.string());
  std::string head(std::min(content_head_bytes, static_cast<std::size_t>(info.st_size)), '\0');
  read_fully(fd.get(), file, head.data(), head.size(), 0);
  return head;
}

ContentKind known_format(std::string_view head, std::size_t least) {
  for (const Format& format : formats) {
    if (format.magic.size() >= least && head.size() >= format.offset &&
        head.substr(format.offset).starts_with(format.magic))
      return format.kind;
  }
  return {};
}

ContentKind content_kind(std::string_view head) {
  const ContentKind kind = known_format(head);
  return kind.name.empty() ? binary_kind(head) : kind;
}

void check_is_text(std::string_view head, const std::string& file, std::string_view format) {
  const ContentKind kind = content_kind(head);
  if (kind.name.empty()) return;
  std::string advice = "--format text would take its bytes as they are";
  if (!kind.command.empty()) {
    const std::string word = file == standard_input_name ? "FILE" : shell_word(file);
    const std::string command = fmt::format(fmt::runtime(kind.command), word);
    advice = fmt::format("{} | mylos tokenize - {} ...; {}", command,
                         kind.gives_lines ? "--format jsonl" : format, advice);
  }
  fail(ExitCode::bad_data, "{} is {}, not a text in UTF-8: {}", file, kind.name, advice);
}

namespace {

bool is_run_directory(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "resolved.deck", error) && fs::exists(folder / "status.json", error);
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "manifest.json", error) && fs::exists(folder / "state.json", error);
}

/// Whether a run has its checkpoints in `folder`.
bool holds_checkpoints(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().filename().native().starts_with("step_") && is_checkpoint(entry->path())) return true;
  }
  return false;
}

/// The kind of a folder that mylos has made; empty for others.
std::string_view own_folder(const fs::path& folder) {
  if (is_run_directory(folder)) return "run directory";
  return is_checkpoint(folder) ? "checkpoint" : holds_checkpoints(folder) ? "folder of checkpoints" : "";
}

/// Whether `name` is that of a file in a run's directory.
bool is_name_in_run(std::string_view name) {
  constexpr std::string_view names[] = {"resolved.deck", "metrics.h5", "status.json", "report.html",
                                        "gpt2.tiktoken"};
  return std::ranges::find(names, name) != std::end(names) ||
         (name.starts_with("trace-") && name.find(".json") != std::string_view::npos);
}

}  // namespace

std::string_view own_kind(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (fs::is_directory(status)) return own_folder(file);
  if (!fs::is_regular_file(status)) return "";
  const std::string head = content_head(file);
  if (known_format(head).name == token_file.name) return "token file";
  const std::string name = file.filename().string();
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (is_name_in_run(name) && is_run_directory(folder)) return "run's file";
  if (is_checkpoint(folder)) return "checkpoint's file";
  const bool is_temporary = name.ends_with(".tmp");
  // The header of a token file is written last.
  if (is_temporary && head.substr(0, 1024).find_first_not_of('\0') == std::string::npos)
    return "unfinished file";
  if (head.empty() && name.ends_with(".lock")) return "lock file";
  if (name.ends_with(".json") || is_temporary) {
    if (has_keys(head, "\"content\"", "\"documents\"", "\"tokenizer\"", "\"tokens\"", "\"vocab\""))
      return "sidecar";
    if (has_keys(head, "\"done\"", "\"settings\"", "\"--shard-tokens\"")) return "progress file";
  }
  return is_lock(head) ? "lock file" : "";
}

std::string counted_kind(std::int64_t count, std::string_view kind) {
  if (count != 1 && kind == "run directory") return fmt::format("{} run directories", count);
  if (count != 1 && kind.starts_with("folder")) return fmt::format("{} folders of checkpoints", count);
  const bool has_plural = count != 1 && (kind.ends_with("file") || kind == "sidecar" || kind == "checkpoint");
  return fmt::format("{} {}{}", count, kind, has_plural ? "s" : "");
}

bool is_surely_text(std::string_view head) {
  constexpr std::size_t least = 32;
  constexpr std::size_t most_cut = 3;  // bytes of a character that the end of the head cuts
  if (head.size() < least || std::ranges::any_of(head, is_control)) return false;
  const std::size_t end = find_malformed(head, 0);
  return end == head.size() || (head.size() == content_head_bytes && head.size() - end <= most_cut);
}

bool looks_like_json_lines(std::string_view text) {
  text = trimmed_front(text);
  if (!text.starts_with('{')) return false;
  text = trimmed_front(text.substr(1));
  return text.empty() || text.starts_with('"') || text.starts_with('}');
}

std::size_t find_malformed(std::string_view text, std::size_t first) {
  const char* at = text.data() + first;
  const char* const end = text.data() + text.size();
  while (at < end) {
    // Eight ASCII characters that are not NUL at once: no byte with its highest bit set, and none from which
    // subtracting 1 sets that bit.
    std::uint64_t word = 0;
    if (end - at >= 8) {
      std::memcpy(&word, at, sizeof word);
      if (((word | (word - 0x0101010101010101U)) & 0x8080808080808080U) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Utf8Char character = decode_utf8(at, end);
    if (character.bytes == 0 || character.point == 0) break;
    at += character.bytes;
  }
  return static_cast<std::size_t>(at - text.data());
}

}  // namespace mylos
