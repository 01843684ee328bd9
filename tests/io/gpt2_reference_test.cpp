// SPDX-License-Identifier: BSD-3-Clause
// Compares mylos' GPT-2 tokens with tiktoken's, which were recorded by
// tests/reference/make_token_reference.py. The vocabulary and Tiny Shakespeare come from MYLOS_TEST_DATA.
#include <array>
#include <cstdlib>

#include <gmock/gmock.h>

#include "core/base/digest.hpp"
#include "core/base/rng.hpp"
#include "io/json.hpp"
#include "io/tokens/bpe_tokenizer.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/io/small_ranks.hpp"

namespace mylos::test {
namespace {

constexpr char32_t num_code_points = 0x110000;

bool is_surrogate(char32_t point) {
  return point >= 0xd800 && point < 0xe000;
}

std::string utf8(char32_t point) {
  const auto low = [&](unsigned shift) { return static_cast<char>(0x80U | (point >> shift & 0x3fU)); };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xc0U | point >> 6U), low(0)};
  if (point < 0x10000) return {static_cast<char>(0xe0U | point >> 12U), low(6), low(0)};
  return {static_cast<char>(0xf0U | point >> 18U), low(12), low(6), low(0)};
}

/// Generates the same text as the script's Generator.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed) {}

  std::string text(std::size_t size) {
    std::string text;
    while (text.size() < size) text += part();
    return text;
  }

 private:
  static constexpr char32_t spaces[] = {
      0x9,    0xa,    0xb,    0xc,    0xd,    0x20,   0x85,   0xa0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003,
      0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
  static constexpr char32_t scripts[] = {0x61,   0xc0,   0x370,  0x400,  0x5d0,  0x620,   0x905,  0xe01,
                                         0x10a0, 0x1100, 0x3041, 0x4e00, 0xac00, 0x1f300, 0x20000};
  static constexpr char32_t numbers[] = {0x30, 0x660, 0x966, 0x2160, 0x2460, 0xff10, 0x1d7ce};
  static constexpr const char* words[] = {"'s",
                                          "'t",
                                          "'re",
                                          "'ve",
                                          "'m",
                                          "'ll",
                                          "'d",
                                          "'S",
                                          "'LL",
                                          "don't",
                                          "we'll've",
                                          "''",
                                          "' s",
                                          "the",
                                          " of",
                                          " Token",
                                          "\r\n",
                                          "<|endoftext|>",
                                          "for (int i = 0;",
                                          "-----",
                                          "...",
                                          "http://",
                                          "\u2019s",
                                          "e\u0301",
                                          "\ufeff",
                                          "\u200b"};

  std::uint32_t below(std::uint64_t count) {
    state_ += 0x9e3779b97f4a7c15ULL;
    return static_cast<std::uint32_t>(mix64(state_) % count);
  }
  template <class T>
  T any(std::span<const T> list) {
    return list[below(list.size())];
  }
  std::string point() {
    const char32_t plane = below(17);
    const char32_t point = plane << 16U | below(0x10000);
    return utf8(is_surrogate(point) ? 0xfffd : point);
  }
  std::string several(std::uint32_t count, const std::function<std::string()>& one) {
    std::string text;
    for (std::uint32_t i = 0; i < count; ++i) text += one();
    return text;
  }
  std::string part() {
    const std::uint32_t kind = below(8);
    const std::uint32_t length = 1 + below(12);
    if (kind == 0) {
      const std::string repeated = point();
      return several(length * length, [&] { return repeated; });
    }
    if (kind == 1) return several(length, [&] { return point(); });
    if (kind == 2) return several(length, [&] { return utf8(below(32)); });
    if (kind == 3) return any(std::span<const char* const>(words));
    if (kind == 4) return " " + several(length, [&] { return utf8('a' + below(26)); });
    if (kind == 6)
      return several(1 + length / 3, [&] { return utf8(any(std::span<const char32_t>(spaces))); });
    const bool is_script = kind == 5;
    const char32_t first =
        any(is_script ? std::span<const char32_t>(scripts) : std::span<const char32_t>(numbers));
    const std::string before(below(2), ' ');
    return before + several(length, [&] { return utf8(first + below(is_script ? 26 : 10)); });
  }

  std::uint64_t state_;
};

std::string every_code_point(const std::function<std::string(const std::string&)>& around) {
  std::string text;
  for (char32_t point = 0; point < num_code_points; ++point) {
    if (!is_surrogate(point)) text += around(utf8(point));
  }
  return text;
}

class Gpt2Reference : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("MYLOS_TEST_DATA");
    if (folder == nullptr) GTEST_SKIP() << "needs MYLOS_TEST_DATA";
    data_ = folder;
    tokenizer_ = make_tokenizer("gpt2=" + ranks_file().string());
    reference_ =
        Json::parse(slurp(fs::path(std::getenv("MYLOS_SOURCE")) / "tests/reference/gpt2_tokens.json"));
  }

  fs::path ranks_file() const { return data_ / "gpt2.tiktoken"; }

  /// Expects that the tokens of `text` match the reference and decode to `text`.
  void expect_reference(const std::string& name, const std::string& text) const {
    for (const Json& entry : reference_.elements("texts")) {
      if (entry.text("name") != name) continue;
      ASSERT_EQ(static_cast<std::int64_t>(text.size()), entry.integer("bytes")) << "another text";
      const auto tokens = tokenizer_->encode(text);
      EXPECT_EQ(std::ssize(tokens), entry.integer("tokens"));
      Digester digester;
      digester.add(tokens.data(), tokens.size() * sizeof(tokens[0]));
      EXPECT_EQ(digester.digest().text(), entry.text("digest"));
      EXPECT_TRUE(tokenizer_->decode(tokens) == text);
      return;
    }
    FAIL() << "no reference of " << name;
  }

  fs::path data_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Json reference_;
};

TEST_F(Gpt2Reference, HardStrings) {
  const auto strings = reference_.elements("strings");
  ASSERT_GT(strings.size(), 300U);
  for (const Json& entry : strings) {
    const std::string text = entry.text("text");
    const auto tokens = tokenizer_->encode(text);
    const std::vector<std::int64_t> ids(tokens.begin(), tokens.end());
    ASSERT_EQ(ids, entry.integers("tokens")) << testing::PrintToString(text);
    ASSERT_EQ(tokenizer_->decode(tokens), text);
  }
}

TEST_F(Gpt2Reference, EveryCodePoint) {
  expect_reference("every code point", every_code_point([](const std::string& c) { return c; }));
}

TEST_F(Gpt2Reference, EveryCodePointBetweenLetters) {
  expect_reference("every code point between letters",
                   every_code_point([](const std::string& c) { return "a" + c + " " + c; }));
}

TEST_F(Gpt2Reference, GeneratedText) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    expect_reference(fmt::format("seed {}", seed), Generator(seed).text(std::size_t{1} << 20U));
}

TEST_F(Gpt2Reference, TinyShakespeare) {
  expect_reference("tinyshakespeare.txt", slurp(data_ / "tinyshakespeare.txt"));
}

TEST_F(Gpt2Reference, VocabAndMergesSayTheSame) {
  const BpeRanks ranks = BpeRanks::read(ranks_file());
  std::map<std::string, int> known;
  for (const std::string& token : ranks.tokens()) known[token] = static_cast<int>(known.size());
  Merges merges;
  for (std::size_t id = 256; id < ranks.tokens().size(); ++id) {
    const auto parts = merge_simply(ranks.tokens()[id], known, static_cast<int>(id));
    ASSERT_EQ(parts.size(), 2U) << id;
    merges.emplace_back(parts[0], parts[1]);
  }
  const ScratchDirectory scratch;
  const MergesFiles files = files_of(merges);
  spill(scratch.path() / "vocab.json", files.vocab);
  spill(scratch.path() / "merges.txt", files.merges);
  const auto other = make_tokenizer("gpt2=" + scratch.path().string());
  EXPECT_EQ(other->identity(), tokenizer_->identity());
  EXPECT_EQ(other->encode("from vocab.json"), tokenizer_->encode("from vocab.json"));
}

// Takes far too long if the merging of a long piece is O(n^2).
TEST_F(Gpt2Reference, AMegabyteOfOneLetter) {
  const std::string text(1000000, 'a');
  const auto tokens = tokenizer_->encode(text);
  // The longest token made of this letter alone repeats it 4 times.
  EXPECT_LT(tokens.size(), 500000U);
  EXPECT_EQ(tokenizer_->decode(tokens), text);
}

}  // namespace
}  // namespace mylos::test
