// SPDX-License-Identifier: BSD-3-Clause
// What a file holds, by its first bytes: known formats that are not texts, and the files that mylos itself
// writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace mylos {

/// As many first bytes of a file as the functions below look at.
inline constexpr std::size_t content_head_bytes = 4096;

inline constexpr std::string_view standard_input_name = "standard input";

/// The byte order mark of UTF-8.
inline constexpr std::string_view utf8_mark = "\xef\xbb\xbf";

/// The first `content_head_bytes` of a regular file, or all of a shorter one. Throws ExitCode::io.
std::string content_head(const std::filesystem::path& file);

/// What a file is that is not a text.
struct ContentKind {
  std::string_view name;     ///< "gzip data"; empty if it may be a text
  std::string_view command;  ///< prints its text, with {} for the file; empty if no common program does
  bool gives_lines = false;  ///< the command prints JSON lines
};

inline constexpr std::string_view merge_ranks_kind =
    "a file of GPT-2's merge ranks, for --tokenizer gpt2=FILE";
inline constexpr std::string_view numpy_kind = "a NumPy array";
inline constexpr std::string_view library_kind = "a program or library";

/// The format of a file that begins with `head`, by a magic number of at least `least` bytes; no name if it
/// has none that is known.
ContentKind known_format(std::string_view head, std::size_t least = 1);

/// The kind of a file that begins with `head`: a known format, UTF-16 or UTF-32, or binary data (NUL bytes,
/// or more than a tenth control characters). No name if it may be a text.
ContentKind content_kind(std::string_view head);

/// Throws ExitCode::bad_data if `file`, which begins with `head`, is not a text. The message says what it is,
/// and how to convert it for `mylos tokenize`; `format` is the option that then says how to read it, such as
/// "--format text". Standard input has the name `standard_input_name`.
void check_is_text(std::string_view head, const std::string& file, std::string_view format);

/// `file` as a word of the shell.
std::string shell_word(const std::string& file);

/// "token file", "sidecar", "progress file", "lock file", "unfinished file", "run directory", "run's file",
/// "checkpoint", "checkpoint's file" or "folder of checkpoints" if `file` is one that mylos writes, by its
/// name and content; empty otherwise.
std::string_view own_kind(const std::filesystem::path& file);

/// "1 token file", "2 token files", "3 .gz": how many files of a kind there are.
std::string counted_kind(std::int64_t count, std::string_view kind);

/// Whether a file that begins with `head` is a text: at least 32 bytes of UTF-8 without control characters.
bool is_surely_text(std::string_view head);

/// Whether `text` looks like the beginning of JSON lines: of an object with a key, or without any.
bool looks_like_json_lines(std::string_view text);

/// The beginning of a byte sequence in `text`, from `first`, that is not UTF-8, or of a NUL byte; its size if
/// there is none.
std::size_t find_malformed(std::string_view text, std::size_t first);

}  // namespace mylos
