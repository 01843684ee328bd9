// SPDX-License-Identifier: BSD-3-Clause
#include "io/choices/choice_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <fcntl.h>
#include <span>
#include <sys/stat.h>
#include <utility>

#include "core/base/error.hpp"
#include "io/json.hpp"
#include "io/tokens/content_kind.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t choice_header_bytes = 1024;
constexpr std::int32_t choice_version = 1;
constexpr std::uint16_t start_of_example = 65535;
constexpr std::size_t start_words = 6;                       // of an example, before its tokens
constexpr std::int64_t least_bytes = (start_words + 2) * 2;  // of an example: one ending with one token

static_assert(std::endian::native == std::endian::little,
              "evaluation files are little endian and used as they are");

/// The text under `key`. Json::text would also take an object that stands for bytes that are not UTF-8.
std::string text_under(const Json& object, std::string_view key) {
  if (object.at(key).is_object()) fail(ExitCode::bad_data, "\"{}\" is not text", key);
  return object.text(key);
}

/// The integer under "label", also if it is written as text.
std::int64_t label_of(const Json& object) {
  constexpr std::size_t most_shown = 40;  // bytes of what is not a label
  const std::string shown = object.at("label").dump();
  std::string_view digits = shown;
  if (digits.size() >= 2 && digits.starts_with('"')) digits = digits.substr(1, digits.size() - 2);
  if (digits.empty())
    fail(ExitCode::bad_data,
         "\"label\" is empty; it says which ending is right, from 0 (test sets have none)");
  std::int64_t label = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), label);
  if (error == std::errc::invalid_argument || end != digits.data() + digits.size())
    fail(ExitCode::bad_data, "\"label\" is {}, not an integer", shown.substr(0, most_shown));
  return error == std::errc::result_out_of_range ? -1 : label;
}

void check_label(std::int64_t label, std::size_t endings, const std::string& shown) {
  if (label >= 0 && label < static_cast<std::int64_t>(endings)) return;
  fail(ExitCode::bad_data, "label {} is out of range: there {} {} ending{}, numbered from 0", shown,
       endings == 1 ? "is" : "are", endings, endings == 1 ? "" : "s");
}

ChoiceText parse_text(const Json& object) {
  ChoiceText text{.context = text_under(object, "ctx"), .endings = {}, .hellaswag = {}};
  const std::vector<Json> endings = object.elements("endings");
  if (endings.empty()) fail(ExitCode::bad_data, "\"endings\" is empty");
  for (std::size_t i = 0; i < endings.size(); ++i) {
    const std::string name = fmt::format("endings[{}]", i);
    text.endings.push_back(text_under(Json::object({{name, endings[i]}}), name));
  }
  if (object.has("activity_label") && object.has("ctx_a") && object.has("ctx_b")) {
    text.hellaswag = {.activity_label = text_under(object, "activity_label"),
                      .ctx_a = text_under(object, "ctx_a"),
                      .ctx_b = text_under(object, "ctx_b")};
  }
  return text;
}

ChoiceExample parse_line(std::string_view line) {
  if (const std::size_t bad = find_malformed(line, 0); bad < line.size()) {
    if (line[bad] == '\0') fail(ExitCode::bad_data, "byte {} of the line is NUL", bad + 1);
    fail(ExitCode::bad_data, "not UTF-8: byte {} of the line", bad + 1);
  }
  const Json object = Json::parse(line);
  if (!object.is_object()) fail(ExitCode::bad_data, "not a JSON object");
  ChoiceExample example;
  ChoiceText text = parse_text(object);
  example.label = label_of(object);
  check_label(example.label, text.endings.size(), object.at("label").dump());
  example.content = std::move(text);
  return example;
}

/// An example of an llm.c file, which begins at `offset`; errors name offsets in the file.
ChoiceExample parse_words(std::span<const std::uint16_t> words, std::int64_t number, std::int64_t offset) {
  std::size_t at = 2;
  const auto refuse = [&](const std::string& problem) {
    fail(ExitCode::bad_data, "offset {}: {}", offset + static_cast<std::int64_t>(2 * (at - 1)), problem);
  };
  const auto next = [&](const std::string& what) {
    ++at;
    if (at > words.size()) refuse(fmt::format("its {} bytes end before {}", 2 * words.size(), what));
    return words[at - 1];
  };
  const auto tokens = [&](const std::string& what) {
    const std::size_t size = next("the length of " + what);
    if (size > words.size() - at)
      refuse(fmt::format("{} has {} tokens; {} are left of its {} bytes", what, size, words.size() - at,
                         2 * words.size()));
    const auto part = words.subspan(at, size);
    at += size;
    return std::vector<std::uint16_t>(part.begin(), part.end());
  };
  if (const std::int64_t index = next("its number"); index != number)
    refuse(fmt::format("its number is {}, not {}", index, number));
  ChoiceExample example;
  example.label = next("its label");
  const std::size_t num_endings = next("the number of endings");
  if (num_endings == 0) refuse("it has no endings");
  check_label(example.label, num_endings, fmt::format("{}", example.label));
  ChoiceTokens content{.context = tokens("the context"), .endings = {}};
  for (std::size_t i = 0; i < num_endings; ++i) {
    content.endings.push_back(tokens(fmt::format("ending {}", i)));
    if (content.endings.back().empty()) refuse(fmt::format("ending {} has no tokens", i));
  }
  if (at != words.size()) {
    ++at;
    refuse(fmt::format("{} of its {} bytes come after the last ending", 2 * (words.size() - at + 1),
                       2 * words.size()));
  }
  example.content = std::move(content);
  return example;
}

/// Throws ExitCode::bad_data if `file`, which begins with `head`, cannot hold JSON lines.
void check_is_lines(const fs::path& file, std::string_view head) {
  constexpr std::string_view expected =
      "JSON lines with \"ctx\", \"endings\" and \"label\", or an llm.c evaluation file";
  const std::string name = file.string();
  const std::string word = shell_word(name);
  if (const ContentKind kind = content_kind(head); !kind.name.empty()) {
    const std::string way = kind.command.empty() ? ""
                                                 : fmt::format(": {} > NAME.jsonl",
                                                               fmt::format(fmt::runtime(kind.command), word));
    fail(ExitCode::bad_data, "{} is {}, not {}{}", name, kind.name, expected, way);
  }
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && head[first] == '[') {
    fail(ExitCode::bad_data, "{} is a JSON array, not JSON lines: jq -c '.[]' {} > NAME.jsonl", name, word);
  }
}

}  // namespace

ChoiceFile::ChoiceFile(const fs::path& file, ChoiceStyle style, std::optional<std::int64_t> limit)
    : path_(file), file_(open_file(file, O_RDONLY | O_NONBLOCK)), limit_(limit) {
  require(!limit || *limit > 0, "at least one example is read");
  struct stat info {};
  check_call(::fstat(file_.get(), &info), "read", path_);
  if (!S_ISREG(info.st_mode)) fail(ExitCode::bad_data, "{} is not a regular file", path_.string());
  bytes_ = info.st_size;
  std::int32_t magic = 0;
  if (bytes_ >= std::int64_t{sizeof magic}) read_fully(file_.get(), path_, &magic, sizeof magic, 0);
  has_tokens_ = magic == choice_file_magic;
  if (!has_tokens_) {
    check_is_lines(path_, content_head(path_));
    return;
  }
  if (style == ChoiceStyle::harness) {
    fail(ExitCode::usage,
         "{} is an evaluation file of llm.c: it holds tokens, but the style harness cleans the text and "
         "encodes it anew; use the style llmc, or the JSON lines that the file was made from",
         path_.string());
  }
  read_header();
}

void ChoiceFile::read_header() {
  if (bytes_ < choice_header_bytes) {
    fail(ExitCode::bad_data, "{} has {} bytes; an evaluation file of llm.c begins with a header of {}",
         path_.string(), bytes_, choice_header_bytes);
  }
  std::array<std::int32_t, 4> header{};
  read_fully(file_.get(), path_, header.data(), sizeof header, 0);
  position_ = choice_header_bytes;
  const auto refuse = [&](std::size_t word, const std::string& problem) {
    fail(ExitCode::bad_data, "{}: offset {}: {}", path_.string(), word * sizeof header[0], problem);
  };
  if (header[1] != choice_version)
    refuse(1, fmt::format("version {}; only {} is known", header[1], choice_version));
  num_examples_ = header[2];
  longest_ = header[3];
  if (num_examples_ <= 0 || num_examples_ > (bytes_ - choice_header_bytes) / least_bytes)
    refuse(2, fmt::format("{} examples; the file's {} bytes cannot hold them", num_examples_, bytes_));
  if (longest_ < least_bytes || longest_ > start_of_example)
    refuse(3, fmt::format("the longest example has {} bytes; {} to {} are possible", longest_, least_bytes,
                          start_of_example));
}

std::optional<ChoiceExample> ChoiceFile::next() {
  if (limit_ && number_ >= *limit_) return std::nullopt;
  std::optional<ChoiceExample> example;
  if (!has_tokens_) {
    example = next_line();
  } else if (number_ < num_examples_) {
    example = next_tokens();
  } else {
    check_end();
  }
  if (example) example->number = number_++;
  if (!example && number_ == 0) fail(ExitCode::bad_data, "{} holds no examples", path_.string());
  return example;
}

std::optional<std::string_view> ChoiceFile::take_line() {
  constexpr std::int64_t block_bytes = std::int64_t{256} << 10U;
  std::size_t searched = begin_;
  for (;;) {
    const std::size_t end = buffer_.find('\n', searched);
    const bool is_whole = end != std::string::npos || position_ == bytes_;
    const std::size_t size = std::min(end, buffer_.size()) - begin_;
    if (size > most_line_bytes) {
      fail(ExitCode::bad_data, "{}:{}: the line is longer than {} bytes", path_.string(), line_ + 1,
           most_line_bytes);
    }
    if (is_whole) {
      if (begin_ == buffer_.size()) return std::nullopt;
      const std::size_t first = std::exchange(begin_, std::min(begin_ + size + 1, buffer_.size()));
      ++line_;
      return std::string_view(buffer_).substr(first, size);
    }
    buffer_.erase(0, std::exchange(begin_, 0));
    searched = size;
    const auto count = static_cast<std::size_t>(std::min(block_bytes, bytes_ - position_));
    buffer_.resize(size + count);
    read_fully(file_.get(), path_, buffer_.data() + size, count, position_);
    position_ += static_cast<std::int64_t>(count);
  }
}

std::optional<ChoiceExample> ChoiceFile::next_line() {
  while (std::optional<std::string_view> line = take_line()) {
    if (line_ == 1 && line->starts_with(utf8_mark)) line->remove_prefix(utf8_mark.size());
    if (line->find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}:{}", path_.string(), line_);
    ChoiceExample example = at_place(place, [&] { return parse_line(*line); });
    example.place = place;
    return example;
  }
  return std::nullopt;
}

ChoiceExample ChoiceFile::next_tokens() {
  const std::string place = fmt::format("{}: example {}", path_.string(), number_);
  const std::int64_t left = bytes_ - position_;
  if (left < least_bytes) {
    fail(ExitCode::bad_data,
         "{}: offset {}: {} bytes are left; an example has at least {}, and the header counts {}", place,
         position_, left, least_bytes, num_examples_);
  }
  std::array<std::uint16_t, 2> start{};
  read_fully(file_.get(), path_, start.data(), sizeof start, position_);
  const auto [mark, size] = start;
  if (mark != start_of_example) {
    fail(ExitCode::bad_data, "{}: offset {}: {}; an example begins with {}", place, position_, mark,
         start_of_example);
  }
  if (size % 2 != 0 || size < least_bytes || size > std::min(longest_, left)) {
    fail(ExitCode::bad_data,
         "{}: offset {}: it has {} bytes; expected an even number from {} to {}, of the longest by the "
         "header, "
         "and to {}, of the rest of the file",
         place, position_ + 2, size, least_bytes, longest_, left);
  }
  std::vector<std::uint16_t> words(size / 2U);
  read_fully(file_.get(), path_, words.data(), size, position_);
  ChoiceExample example = at_place(place, [&] { return parse_words(words, number_, position_); });
  example.place = place;
  longest_read_ = std::max<std::int64_t>(longest_read_, size);
  position_ += size;
  return example;
}

void ChoiceFile::check_end() const {
  if (position_ != bytes_) {
    fail(ExitCode::bad_data,
         "{}: offset {}: {} bytes after the last of the {} examples that the header counts", path_.string(),
         position_, bytes_ - position_, num_examples_);
  }
  if (longest_read_ != longest_) {
    fail(ExitCode::bad_data, "{}: offset 12: the longest example has {} bytes by the header, but {}",
         path_.string(), longest_, longest_read_);
  }
}

std::int64_t count_choices(const fs::path& file, ChoiceStyle style, std::optional<std::int64_t> limit) {
  ChoiceFile choices(file, style, limit);
  std::int64_t count = 0;
  while (choices.next()) ++count;
  return count;
}

}  // namespace mylos
