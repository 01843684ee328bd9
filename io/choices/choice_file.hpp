// SPDX-License-Identifier: BSD-3-Clause
// ChoiceFile: reads multiple choice questions, such as HellaSwag's, one after another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/file_util.hpp"

namespace mylos {

inline constexpr std::int32_t choice_file_magic = 20240522;

/// How questions become tokens, and how the losses of endings of different lengths are compared.
enum class ChoiceStyle : std::uint8_t {
  llmc,     ///< as llm.c's HellaSwag: context and space + ending apart; losses divided by tokens
  harness,  ///< as lm-evaluation-harness' task hellaswag: cleaned, encoded together; divided by code points
};

inline constexpr std::string_view choice_style_names[] = {"llmc", "harness"};

/// The parts of the context of HellaSwag's questions.
struct HellaswagContext {
  std::string activity_label;
  std::string ctx_a;
  std::string ctx_b;
};

/// A question in words, in UTF-8.
struct ChoiceText {
  std::string context;
  std::vector<std::string> endings;
  std::optional<HellaswagContext> hellaswag;  ///< if the question has all of its parts
};

/// A question of an llm.c file, in GPT-2's tokens.
struct ChoiceTokens {
  std::vector<std::uint16_t> context;
  std::vector<std::vector<std::uint16_t>> endings;  ///< none is empty
};

struct ChoiceExample {
  std::int64_t number = 0;  ///< in the file, from 0; blank lines do not count
  std::string place;        ///< for messages: "FILE:LINE", lines from 1, or "FILE: example NUMBER"
  std::int64_t label = 0;   ///< the right ending
  std::variant<ChoiceText, ChoiceTokens> content;
};

/// A file of questions, recognised by its content:
/// - JSON lines: objects with `ctx` (text), `endings` (one or more texts) and `label` (an integer from 0, or
///   text of one). HellaSwag's `activity_label`, `ctx_a` and `ctx_b` are read if all three are there, other
///   keys are ignored, blank lines skipped. A line has at most `most_line_bytes`.
/// - llm.c's evaluation file: 256 int32 of which the first are the magic number, 1, the number of examples
/// and
///   the bytes of the longest; then uint16 for each example: 65535, its bytes, number, label, number of
///   endings, length of the context, the context's tokens, and for each ending its length and tokens.
///
/// Reading takes memory for one example.
class ChoiceFile {
 public:
  static constexpr std::size_t most_line_bytes = std::size_t{1} << 20U;

  /// Opens a file to read its first `limit` examples, or all. Throws ExitCode::usage if it holds tokens and
  /// `style` needs text; ExitCode::bad_data, naming the file, if it is not a regular file or known to hold
  /// something else; ExitCode::io if it cannot be read.
  ChoiceFile(const std::filesystem::path& file, ChoiceStyle style, std::optional<std::int64_t> limit = {});

  /// Whether its questions are tokens.
  bool has_tokens() const { return has_tokens_; }

  /// The next example; empty after the last. Throws ExitCode::bad_data, with the file and the line or the
  /// number of the example, for one that breaks the rules above, or if the file holds none; ExitCode::io.
  std::optional<ChoiceExample> next();

 private:
  void read_header();
  std::optional<ChoiceExample> next_line();
  /// The next line without its newline, valid until the next call; empty at the file's end.
  std::optional<std::string_view> take_line();
  ChoiceExample next_tokens();
  void check_end() const;

  std::filesystem::path path_;
  FileDescriptor file_;
  std::int64_t bytes_ = 0;     // of the file
  std::int64_t position_ = 0;  // in the file, of what was not read yet
  std::optional<std::int64_t> limit_;
  std::int64_t number_ = 0;  // of the next example
  bool has_tokens_ = false;

  // of JSON lines
  std::string buffer_;
  std::size_t begin_ = 0;  // in the buffer, of the next line
  std::int64_t line_ = 0;  // that was taken last

  // of an llm.c file
  std::int64_t num_examples_ = 0;
  std::int64_t longest_ = 0;       // bytes, as the header says
  std::int64_t longest_read_ = 0;  // bytes
};

/// Reads a file as ChoiceFile does, to its end or `limit`, and returns the number of examples. Throws like
/// it.
std::int64_t count_choices(const std::filesystem::path& file, ChoiceStyle style,
                           std::optional<std::int64_t> limit = {});

}  // namespace mylos
