// SPDX-License-Identifier: BSD-3-Clause
// Multiple choice questions against lm-evaluation-harness' own task and llm.c's rows, which
// tests/reference/make_choices_reference.py recorded; what bad files get; scores.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <gmock/gmock.h>

#include "core/base/digest.hpp"
#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "io/choices/choice_encoder.hpp"
#include "io/choices/choice_file.hpp"
#include "io/choices/choice_scores.hpp"
#include "io/choices/python_text.hpp"
#include "io/json.hpp"
#include "io/tokens/bpe_tokenizer.hpp"
#include "io/utf8.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using TokenIds = std::vector<std::uint16_t>;

fs::path reference_folder() {
  return fs::path(std::getenv("MYLOS_SOURCE")) / "tests/reference";
}

Json choices_reference() {
  return Json::parse(slurp(reference_folder() / "choices_reference.json"));
}

std::vector<std::string> texts_of(const Json& object, const std::string& key) {
  std::vector<std::string> texts;
  for (const Json& element : object.elements(key))
    texts.push_back(Json::object({{"text", element}}).text("text"));
  return texts;
}

std::vector<double> reals_of(const Json& object, const std::string& key) {
  std::vector<double> values;
  for (const Json& element : object.elements(key))
    values.push_back(Json::object({{"value", element}}).real("value"));
  return values;
}

TokenIds ids_of(const Json& object, const std::string& key) {
  const auto integers = object.integers(key);
  return {integers.begin(), integers.end()};
}

TokenIds bytes_as_tokens(std::string_view text) {
  TokenIds tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::vector<ChoiceExample> read_choices(const fs::path& file, ChoiceStyle style,
                                        std::optional<std::int64_t> limit = {}) {
  ChoiceFile choices(file, style, limit);
  std::vector<ChoiceExample> examples;
  while (std::optional<ChoiceExample> example = choices.next()) examples.push_back(std::move(*example));
  return examples;
}

std::vector<EncodedChoice> encode_choices(const fs::path& file, ChoiceStyle style, const Tokenizer* tokenizer,
                                          std::int64_t vocab = 65536) {
  ChoiceEncoder encoder(style, tokenizer, vocab);
  std::vector<EncodedChoice> encoded;
  for (const ChoiceExample& example : read_choices(file, style)) encoded.push_back(encoder.encode(example));
  return encoded;
}

/// Expects the tokens of the style harness that are recorded under `name`.
void expect_harness_tokens(const Tokenizer& tokenizer, const std::string& name) {
  const std::vector<EncodedChoice> choices =
      encode_choices(reference_folder() / "choices.jsonl", ChoiceStyle::harness, &tokenizer);
  const auto examples = choices_reference().elements("examples");
  ASSERT_EQ(choices.size(), examples.size());
  for (std::size_t i = 0; i < examples.size(); ++i) {
    SCOPED_TRACE(examples[i].dump());
    const Json expected = examples[i].at(name);
    // The harness stops at a context without tokens.
    const TokenIds context = ids_of(expected, "context");
    EXPECT_EQ(choices[i].context, context.empty() ? TokenIds{tokenizer.end_of_text()} : context);
    const auto endings = expected.elements("endings");
    ASSERT_EQ(choices[i].endings.size(), endings.size());
    for (std::size_t e = 0; e < endings.size(); ++e)
      EXPECT_EQ(choices[i].endings[e], ids_of(Json::object({{"tokens", endings[e]}}), "tokens"));
  }
}

std::string base64_of(std::string_view bytes) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto byte = static_cast<unsigned char>(bytes[0]);
  return {letters[byte >> 2U], letters[(byte & 3U) << 4U], '=', '='};
}

TEST(Choices, TextsAreTheHarness) {
  const auto examples = read_choices(reference_folder() / "choices.jsonl", ChoiceStyle::harness);
  const auto expected = choices_reference().elements("examples");
  ASSERT_EQ(examples.size(), expected.size());
  for (std::size_t i = 0; i < examples.size(); ++i) {
    const auto& text = std::get<ChoiceText>(examples[i].content);
    EXPECT_EQ(harness_context(text), expected[i].text("context"));
    std::vector<std::string> continuations;
    for (const std::string& ending : text.endings) continuations.push_back(" " + cleaned_choice(ending));
    EXPECT_EQ(continuations, texts_of(expected[i], "continuations")) << expected[i].text("context");
    EXPECT_EQ(examples[i].label, expected[i].integer("label"));
    EXPECT_EQ(examples[i].number, static_cast<std::int64_t>(i));
  }
}

TEST(Choices, HarnessTokensOfSmallRanks) {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte)
    ranks += fmt::format("{} {}\n", base64_of(std::string(1, static_cast<char>(byte))), byte);
  int rank = 256;
  for (const std::string& token : texts_of(choices_reference(), "small_merges"))
    ranks += fmt::format("{} {}\n", token, rank++);
  expect_harness_tokens(BpeTokenizer(BpeRanks::parse_tiktoken(ranks, "ranks")), "small");
}

TEST(Choices, HarnessTokensOfGpt2) {
  const char* folder = std::getenv("MYLOS_TEST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "needs MYLOS_TEST_DATA";
  expect_harness_tokens(*make_tokenizer("gpt2=" + (fs::path(folder) / "gpt2.tiktoken").string()), "gpt2");
}

TEST(Choices, HarnessRowsOfBytes) {
  const auto tokenizer = make_tokenizer("bytes");
  const auto choices =
      encode_choices(reference_folder() / "choices.jsonl", ChoiceStyle::harness, tokenizer.get());
  const Json reference = choices_reference();
  const auto examples = reference.elements("examples");
  ASSERT_EQ(choices.size(), examples.size());
  int cut = 0;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    const std::string context = examples[i].text("context");
    const auto continuations = texts_of(examples[i], "continuations");
    EXPECT_EQ(choices[i].code_points, examples[i].integers("code_points"));
    const auto rows = examples[i].elements("rows");
    for (std::size_t e = 0; e < continuations.size(); ++e) {
      TokenIds whole = choices[i].context;
      whole.insert(whole.end(), choices[i].endings[e].begin(), choices[i].endings[e].end());
      if (whole[0] == 256) whole.erase(whole.begin());
      EXPECT_EQ(whole, bytes_as_tokens(context + continuations[e]));
      // Bytes as characters up to U+00FF.
      std::string row = Json::object({{"row", rows[e]}}).text("row");
      if (row.empty()) continue;
      ++cut;
      std::vector<std::int32_t> expected;
      for (const char *at = row.data(), *end = at + row.size(); at < end;) {
        const Utf8Char character = decode_utf8(at, end);
        expected.push_back(static_cast<std::int32_t>(character.point));
        at += character.bytes;
      }
      const ChoiceRow actual = choices[i].row(e, reference.integer("max_length"));
      EXPECT_EQ(actual.tokens, expected);
      EXPECT_EQ(actual.num_targets, std::ssize(choices[i].endings[e]));
      EXPECT_EQ(actual.dropped,
                std::ssize(choices[i].context) + std::ssize(choices[i].endings[e]) - std::ssize(expected));
    }
  }
  EXPECT_GT(cut, 10);
}

// All characters with case, and white space, are among these.
TEST(Choices, PythonTextOfManyCodePoints) {
  std::vector<std::string> first, later, sigma, stripped;
  for (std::uint32_t point = 0; point < 0xe0200; ++point) {
    if ((point >= 0xd800 && point < 0xe000) || (point >= 0x20000 && point < 0xe0000)) continue;
    const std::string c = encode_utf8(point);
    first.push_back(python::capitalize(c));
    later.push_back(python::capitalize("x" + c));
    sigma.push_back(python::capitalize("aΣ" + c + " " + c + "Σ a" + c + "Σ aΣ" + c + "a"));
    stripped.emplace_back(python::strip(c + "a" + c));
    ASSERT_EQ(python::length(c + "a" + c), 3);
  }
  const Json expected = choices_reference().at("python");
  const auto digest = [](const std::vector<std::string>& texts) {
    return digest_of(join(texts, "\n")).text();
  };
  EXPECT_EQ(digest(first), expected.text("first"));
  EXPECT_EQ(digest(later), expected.text("later"));
  EXPECT_EQ(digest(sigma), expected.text("sigma"));
  EXPECT_EQ(digest(stripped), expected.text("strip"));
}

// The brackets that no closing one follows are looked at once, not once for each.
TEST(Choices, CleaningIsLinear) {
  const std::string text(std::size_t{1} << 20U, '[');
  EXPECT_EQ(cleaned_choice(text), text);
  EXPECT_EQ(cleaned_choice(text + "]"), "");
  EXPECT_EQ(cleaned_choice("a    b"), "a  b");
}

// The script wrote the same questions in bytes as an evaluation file of llm.c.
TEST(Choices, LlmcRows) {
  const auto tokenizer = make_tokenizer("bytes");
  const auto of_text =
      encode_choices(reference_folder() / "choices.jsonl", ChoiceStyle::llmc, tokenizer.get(), 257);
  const auto of_tokens =
      encode_choices(reference_folder() / "choices.bin", ChoiceStyle::llmc, tokenizer.get(), 257);
  const auto texts = read_choices(reference_folder() / "choices.jsonl", ChoiceStyle::llmc);
  ASSERT_EQ(of_text.size(), texts.size());
  ASSERT_EQ(of_tokens.size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto& text = std::get<ChoiceText>(texts[i].content);
    EXPECT_EQ(of_text[i].context, text.context.empty() ? TokenIds{256} : bytes_as_tokens(text.context));
    for (std::size_t e = 0; e < text.endings.size(); ++e)
      EXPECT_EQ(of_text[i].endings.at(e), bytes_as_tokens(" " + text.endings[e]));
    EXPECT_TRUE(of_text[i].code_points.empty());
    EXPECT_EQ(of_tokens[i].number, of_text[i].number);
    EXPECT_EQ(of_tokens[i].label, of_text[i].label);
    EXPECT_EQ(of_tokens[i].context, of_text[i].context);
    EXPECT_EQ(of_tokens[i].endings, of_text[i].endings);
  }
}

TEST(Choices, RowsLoseTheirBeginning) {
  EncodedChoice choice;
  choice.context = {1, 2, 3};
  choice.endings = {{4, 5}, {6, 7, 8, 9, 10}};
  const auto expect_row = [&](std::size_t ending, std::int64_t max_length,
                              const std::vector<std::int32_t>& tokens, std::int64_t targets) {
    const ChoiceRow row = choice.row(ending, max_length);
    EXPECT_EQ(row.tokens, tokens);
    EXPECT_EQ(row.num_targets, targets);
  };
  expect_row(0, 100, {1, 2, 3, 4, 5}, 2);
  expect_row(0, 4, {1, 2, 3, 4, 5}, 2);
  expect_row(0, 3, {2, 3, 4, 5}, 2);
  expect_row(1, 5, {3, 6, 7, 8, 9, 10}, 5);
  expect_row(1, 4, {6, 7, 8, 9, 10}, 4);
  expect_row(1, 1, {9, 10}, 1);
  EXPECT_EQ(choice.row(1, 1).dropped, 6);
}

class ChoiceFiles : public testing::Test {
 protected:
  fs::path put(const std::string& content) const {
    spill(file_, content);
    return file_;
  }

  /// Expects that reading the file throws `code` with a message that begins with its path and `message`.
  void expect_error(const std::string& content, const std::string& message,
                    ExitCode code = ExitCode::bad_data, ChoiceStyle style = ChoiceStyle::llmc) const {
    SCOPED_TRACE(message);
    put(content);
    try {
      count_choices(file_, style);
      FAIL() << "was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), testing::StartsWith(file_.string()));
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }

  ScratchDirectory scratch_;
  fs::path file_ = scratch_.path() / "choices";
};

constexpr const char* good_line = R"({"ctx": "a", "endings": ["b", "c"], "label": 1})";

TEST_F(ChoiceFiles, LinesThatAreRead) {
  const auto count = [&](const std::string& content) {
    return count_choices(put(content), ChoiceStyle::harness);
  };
  const std::string line = good_line;
  EXPECT_EQ(count(line), 1);
  EXPECT_EQ(count("\xef\xbb\xbf" + line + "\r\n\n  \t\r\n" + line + "\n\n"), 2);
  EXPECT_EQ(count(R"({"ctx": "", "endings": [""], "label": "0", "activity_label": 7, "other": [{}]})"), 1);
  const auto examples =
      read_choices(put("\n" + line + "\n" + line + "\n" + line + "\nnot JSON"), ChoiceStyle::llmc, 2);
  ASSERT_EQ(examples.size(), 2U);
  EXPECT_EQ(examples[1].number, 1);
  EXPECT_EQ(examples[1].place, file_.string() + ":3");
}

// Lines and blocks of the file end at different places.
TEST_F(ChoiceFiles, LinesOfAnyLength) {
  std::string content;
  std::vector<std::size_t> sizes;
  for (std::size_t size = 1; size < 700000; size = size * 5 / 3 + 1) sizes.push_back(size);
  for (const std::size_t size : sizes)
    content += fmt::format(R"({{"ctx": "{}", "endings": ["b"], "label": 0}})", std::string(size, 'x')) + "\n";
  const auto examples = read_choices(put(content), ChoiceStyle::llmc);
  ASSERT_EQ(examples.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    EXPECT_EQ(std::get<ChoiceText>(examples[i].content).context, std::string(sizes[i], 'x'));
}

TEST_F(ChoiceFiles, BadLines) {
  const std::string before = std::string(good_line) + "\n\n";
  const auto expect_bad = [&](const std::string& line, const std::string& message) {
    expect_error(before + line + "\n" + good_line, ":3: " + message);
  };
  expect_bad(R"({"endings": ["b"], "label": 0})", "has no \"ctx\"");
  expect_bad(R"({"ctx": "a", "label": 0})", "has no \"endings\"");
  expect_bad(R"({"ctx": "a", "endings": ["b"]})", "has no \"label\"");
  expect_bad(R"({"ctx": 1, "endings": ["b"], "label": 0})", "\"ctx\" is not text");
  expect_bad(R"({"ctx": {"latin1": "x"}, "endings": ["b"], "label": 0})", "\"ctx\" is not text");
  expect_bad(R"({"ctx": "a", "endings": "b", "label": 0})", "\"endings\" is not an array");
  expect_bad(R"({"ctx": "a", "endings": [], "label": 0})", "\"endings\" is empty");
  expect_bad(R"({"ctx": "a", "endings": ["b", null], "label": 0})", "\"endings[1]\" is not text");
  expect_bad(R"({"ctx": "a", "endings": ["b"], "label": ""})", "\"label\" is empty");
  expect_bad(R"({"ctx": "a", "endings": ["b"], "label": true})", "\"label\" is true, not an integer");
  expect_bad(R"({"ctx": "a", "endings": ["b"], "label": 0.5})", "\"label\" is 0.5, not an integer");
  expect_bad(R"({"ctx": "a", "endings": ["b"], "label": "b"})", "\"label\" is \"b\", not an integer");
  expect_bad(R"({"ctx": "a", "endings": ["b"], "label": null})", "\"label\" is null, not an integer");
  expect_bad(R"({"ctx": "a", "endings": ["b"], "label": 1})", "label 1 is out of range: there is 1 ending");
  expect_bad(R"({"ctx": "a", "endings": ["b", "c"], "label": -1})", "label -1 is out of range: there are 2");
  expect_bad(R"({"ctx": "a", "endings": ["b"], "label": "99999999999999999999"})",
             "label \"99999999999999999999\" is out of range");
  expect_bad(R"({"ctx": "a", "endings": ["b"], "label": 18446744073709551615})",
             "label 18446744073709551615 is out of range");
  expect_bad(R"({"ctx": "a", "endings": ["b"], "label": 0, "activity_label": 1, "ctx_a": "", "ctx_b": ""})",
             "\"activity_label\" is not text");
  expect_bad(R"(["a"])", "not a JSON object");
  expect_bad("{\"ctx\": \"a", "");
  expect_bad("text", "");
  expect_bad(std::string(100, '[') + std::string(100, ']'), "nested deeper");
  expect_bad("{\"ctx\": \"\xff\"}", "not UTF-8: byte 10");
  // A file with NUL in its first 4096 bytes is not taken for text.
  expect_error(good_line + std::string(4096, ' ') + "\n" + std::string("{\"ctx\"\0", 7),
               ":2: byte 7 of the line is NUL");
  expect_bad(std::string(ChoiceFile::most_line_bytes + 1, ' '), "the line is longer than 1048576 bytes");
  expect_bad(std::string(5 * ChoiceFile::most_line_bytes, 'x'), "the line is longer than 1048576 bytes");
}

TEST_F(ChoiceFiles, OtherFiles) {
  expect_error("", " holds no examples");
  expect_error("\n \n", " holds no examples");
  expect_error(std::string("[") + good_line + "]", " is a JSON array, not JSON lines: jq");
  expect_error("\x1f\x8b\x08 and more", " is gzip data, not JSON lines");
  expect_error(std::string("\x88\xd8\x34\x01", 4), " is a token file, not JSON lines");
  expect_error(std::string("a\0b\0c\0d\0", 8), " is a text in UTF-16");
  try {
    ChoiceFile(scratch_.path(), ChoiceStyle::llmc);
    FAIL() << "a folder was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is not a regular file"));
  }
  EXPECT_THROW(ChoiceFile(scratch_.path() / "none", ChoiceStyle::llmc), Error);
}

/// An evaluation file of llm.c; its parts can be broken.
struct LlmcFile {
  std::vector<std::int32_t> header = {choice_file_magic, 1, 2, 26};
  std::vector<std::uint16_t> words = {65535, 24, 0, 1, 2, 1, 7, 1,  8,  2,  9,  10,      // 24 bytes
                                      65535, 26, 1, 0, 1, 0, 5, 11, 12, 13, 14, 15, 0};  // 25 words of them

  std::string bytes() const {
    std::vector<std::int32_t> whole = header;
    whole.resize(256);
    std::string text(reinterpret_cast<const char*>(whole.data()), 1024);
    return text + std::string(reinterpret_cast<const char*>(words.data()), 2 * words.size());
  }
  std::string with_header(std::size_t at, std::int32_t value) {
    header[at] = value;
    return bytes();
  }
  std::string with_word(std::size_t at, std::uint16_t value) {
    words[at] = value;
    return bytes();
  }
};

LlmcFile good_llmc_file() {
  LlmcFile file;
  file.words.pop_back();
  file.words[13] = 24;
  file.header[3] = 24;
  return file;
}

TEST_F(ChoiceFiles, BadLlmcFiles) {
  const LlmcFile good = good_llmc_file();
  ASSERT_EQ(count_choices(put(good.bytes()), ChoiceStyle::llmc), 2);
  const auto examples = read_choices(file_, ChoiceStyle::llmc);
  EXPECT_EQ(examples[1].place, file_.string() + ": example 1");
  const auto& tokens = std::get<ChoiceTokens>(examples[0].content);
  EXPECT_THAT(tokens.context, ElementsAre(7));
  EXPECT_THAT(tokens.endings, ElementsAre(ElementsAre(8), ElementsAre(9, 10)));
  EXPECT_EQ(examples[0].label, 1);

  expect_error(good.bytes(), " is an evaluation file of llm.c: it holds tokens", ExitCode::usage,
               ChoiceStyle::harness);
  expect_error(good.bytes().substr(0, 1000), " has 1000 bytes; an evaluation file");
  expect_error(LlmcFile(good).with_header(1, 2), ": offset 4: version 2");
  for (const std::int32_t count : {0, -1, 4, std::numeric_limits<std::int32_t>::max()})
    expect_error(LlmcFile(good).with_header(2, count), fmt::format(": offset 8: {} examples", count));
  expect_error(LlmcFile(good).with_header(2, 1), ": offset 1048: 24 bytes after the last of the 1 examples");
  expect_error(LlmcFile(good).with_header(2, 3), ": example 2: offset 1072: 0 bytes are left");
  for (const std::int32_t size : {0, -24, 65536})
    expect_error(LlmcFile(good).with_header(3, size),
                 fmt::format(": offset 12: the longest example has {}", size));
  expect_error(LlmcFile(good).with_header(3, 26),
               ": offset 12: the longest example has 26 bytes by the header");
  expect_error(LlmcFile(good).with_header(3, 22), ": example 0: offset 1026: it has 24 bytes");
  expect_error(LlmcFile(good).with_word(0, 1), ": example 0: offset 1024: 1; an example begins with 65535");
  for (const std::uint16_t size : {0, 14, 23, 26})
    expect_error(LlmcFile(good).with_word(13, size),
                 fmt::format(": example 1: offset 1050: it has {} bytes", size));
  expect_error(LlmcFile(good).with_word(14, 0), ": example 1: offset 1052: its number is 0, not 1");
  expect_error(LlmcFile(good).with_word(3, 2), ": example 0: label 2 is out of range: there are 2 endings");
  expect_error(LlmcFile(good).with_word(4, 0), ": example 0: offset 1032: it has no endings");
  expect_error(LlmcFile(good).with_word(4, 3), ": example 0: offset 1048: its 24 bytes end before");
  expect_error(LlmcFile(good).with_word(5, 7),
               ": example 0: offset 1034: the context has 7 tokens; 6 are left");
  expect_error(LlmcFile(good).with_word(9, 3), ": example 0: offset 1042: ending 1 has 3 tokens; 2 are left");
  expect_error(LlmcFile(good).with_word(9, 1), ": example 0: offset 1046: 2 of its 24 bytes come after");
  expect_error(LlmcFile(good).with_word(18, 0), "ending 0 has no tokens");
  expect_error(good.bytes().substr(0, 1060), ": example 1: offset 1048: 12 bytes are left");

  // Of a part of the file, the end is not looked at.
  put(LlmcFile(good).with_word(12, 1));
  EXPECT_EQ(count_choices(file_, ChoiceStyle::llmc, 1), 1);
}

TEST_F(ChoiceFiles, TokensOutsideTheVocabulary) {
  const auto expect_refused = [&](std::int64_t vocab, const std::string& message) {
    try {
      encode_choices(file_, ChoiceStyle::llmc, nullptr, vocab);
      FAIL() << "was encoded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_EQ(error.what(), file_.string() + message);
    }
  };
  put(good_llmc_file().bytes());
  expect_refused(7, ": example 0: token 0 of the context is 7; the model's vocabulary has 7");
  expect_refused(10, ": example 0: token 1 of ending 1 is 10; the model's vocabulary has 10");
  expect_refused(50256, ": example 1: token 0 of the context is 50256; the model's vocabulary has 50256");
  EXPECT_THAT(encode_choices(file_, ChoiceStyle::llmc, nullptr, 50257)[1].context, ElementsAre(50256));
}

// Python takes the control character for white space, the tokenizer does not: it can join the context.
TEST_F(ChoiceFiles, EndingsWithoutATokenOfTheirOwn) {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte)
    ranks += fmt::format("{} {}\n", base64_of(std::string(1, static_cast<char>(byte))), byte);
  ranks += "IRw= 256\nISEc 257\n";  // "!\x1c", "!!\x1c"
  const BpeTokenizer tokenizer(BpeRanks::parse_tiktoken(ranks, "ranks"));
  put(R"({"ctx": "!!\u001c[]", "endings": ["b"], "label": 0})");
  const auto choices = encode_choices(file_, ChoiceStyle::harness, &tokenizer);
  EXPECT_EQ(choices[0].context, bytes_as_tokens("!!"));
  EXPECT_EQ(choices[0].endings[0], bytes_as_tokens("b"));
  put(R"({"ctx": "!!\u001c[]", "endings": ["b", "[]"], "label": 0})");
  try {
    encode_choices(file_, ChoiceStyle::harness, &tokenizer);
    FAIL() << "was encoded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_THAT(error.what(), HasSubstr(":1: ending 1 has no token of its own"));
  }
}

EncodedChoice choice_of(std::int64_t number, std::int64_t label, std::size_t endings,
                        std::vector<std::int64_t> code_points = {}) {
  return {.number = number,
          .label = label,
          .context = {1},
          .endings = std::vector<TokenIds>(endings, TokenIds{2}),
          .code_points = std::move(code_points)};
}

TEST(ChoiceScores, AreTheHarness) {
  const auto tokenizer = make_tokenizer("bytes");
  const fs::path file = reference_folder() / "choices.jsonl";
  const Json reference = choices_reference();
  const auto examples = reference.elements("examples");
  const Json expected = reference.at("summary");
  const auto expect_rate = [&](const Rate& rate, const char* key) {
    EXPECT_DOUBLE_EQ(rate.mean, expected.at(key).real("mean")) << key;
    EXPECT_NEAR(rate.error, expected.at(key).real("error"), 1e-15) << key;
  };
  for (const ChoiceStyle style : {ChoiceStyle::harness, ChoiceStyle::llmc}) {
    const bool is_llmc = style == ChoiceStyle::llmc;
    const auto choices = encode_choices(file, style, tokenizer.get());
    ASSERT_EQ(choices.size(), examples.size());
    std::vector<ChoiceScore> scores;
    for (std::size_t i = 0; i < examples.size(); ++i) {
      const auto sums = reals_of(examples[i], "losses");
      const auto greedy = examples[i].elements("greedy");
      std::vector<EndingLoss> losses;
      for (std::size_t e = 0; e < sums.size(); ++e) {
        losses.push_back({.loss = sums[e],
                          .tokens = choices[i].row(e, 1000).num_targets,
                          .is_greedy = Json::object({{"greedy", greedy[e]}}).boolean("greedy")});
      }
      scores.push_back(score_choice(choices[i], losses));
      EXPECT_EQ(scores[i].is_right, examples[i].integer("acc") == 1) << i;
      EXPECT_EQ(scores[i].is_right_normalised,
                examples[i].integer(is_llmc ? "llmc_acc_norm" : "acc_norm") == 1)
          << i;
    }
    const ChoiceSummary summary = summarize_choices(scores);
    EXPECT_EQ(summary.examples, std::ssize(examples));
    expect_rate(summary.accuracy, "acc");
    expect_rate(summary.normalised_accuracy, is_llmc ? "llmc_acc_norm" : "acc_norm");
    expect_rate(summary.greedy, "greedy");
    EXPECT_DOUBLE_EQ(summary.right_loss, expected.real("right_loss"));
    if (is_llmc) {
      EXPECT_DOUBLE_EQ(summary.right_token_loss, expected.real("right_token_loss"));
    }
  }
}

TEST(ChoiceScores, TiesAndOddLosses) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto best = [](const std::vector<double>& sums, std::vector<std::int64_t> code_points = {},
                       bool is_normalised = false) {
    std::vector<EndingLoss> losses;
    for (const double sum : sums) losses.push_back({.loss = sum, .tokens = 1, .is_greedy = false});
    for (std::size_t label = 0; label < sums.size(); ++label) {
      const ChoiceScore score =
          score_choice(choice_of(0, static_cast<std::int64_t>(label), sums.size(), code_points), losses);
      if (is_normalised ? score.is_right_normalised : score.is_right) return label;
    }
    return sums.size();
  };
  EXPECT_EQ(best({2, 1, 1}), 1U);
  EXPECT_EQ(best({0.0, -0.0}), 0U);
  EXPECT_EQ(best({2, nan, 1, nan}), 1U);
  EXPECT_EQ(best({infinity, 3}), 1U);
  EXPECT_EQ(best({infinity, infinity}), 0U);
  EXPECT_EQ(best({1, 2}, {0, 8}, true), 1U);
  EXPECT_EQ(best({1, 2}, {0, 0}, true), 0U);
  EXPECT_EQ(best({1, 2, 3}, {1, 2, 4}, true), 2U);
}

// Sums of these losses depend on the order of the additions.
TEST(ChoiceScores, HaveTheSameBitsInAnyDivision) {
  std::vector<ChoiceScore> scores;
  for (std::int64_t i = 0; i < 1000; ++i) {
    scores.push_back({.number = i,
                      .right_loss = 1.0 / (1.0 + static_cast<double>(i * 37 % 1000)),
                      .right_tokens = 1 + i % 7,
                      .is_right = i % 3 == 0,
                      .is_right_normalised = i % 5 == 0,
                      .is_greedy = i % 2 == 0});
  }
  const ChoiceSummary expected = summarize_choices(scores);
  EXPECT_DOUBLE_EQ(expected.accuracy.mean, 0.334);
  EXPECT_NEAR(expected.accuracy.error, std::sqrt(0.334 * 0.666 / 999), 1e-15);
  double other_order = 0.0;
  for (const ChoiceScore& score : std::vector(scores.rbegin(), scores.rend()))
    other_order += score.right_loss;
  ASSERT_NE(other_order / 1000.0, expected.right_loss);
  for (const std::int64_t ranks : {2, 3, 7}) {
    std::ranges::sort(
        scores, {}, [&](const ChoiceScore& score) { return std::pair(score.number % ranks, score.number); });
    const ChoiceSummary summary = summarize_choices(scores);
    EXPECT_EQ(summary.right_loss, expected.right_loss);
    EXPECT_EQ(summary.right_token_loss, expected.right_token_loss);
    EXPECT_EQ(summary.accuracy.error, expected.accuracy.error);
  }
  EXPECT_TRUE(std::isnan(summarize_choices({scores[0]}).accuracy.error));
  EXPECT_THROW(summarize_choices({scores[0], scores[0]}), Error);
}

TEST(ChoiceScores, Lines) {
  const std::vector<EndingLoss> losses = {
      {.loss = 1.25, .tokens = 3, .is_greedy = false},
      {.loss = std::numeric_limits<double>::infinity(), .tokens = 4, .is_greedy = false},
      {.loss = 0.1, .tokens = 5, .is_greedy = true}};
  EXPECT_EQ(choice_line(choice_of(12, 2, 3), losses),
            R"({"example":12,"label":2,"losses":[1.25,null,0.1],"tokens":[3,4,5]})");
}

}  // namespace
}  // namespace mylos::test
