// SPDX-License-Identifier: BSD-3-Clause
// Token files, good and bad, the order of samples, and the byte tokenizer.
#include "io/tokens/token_dataset.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "io/tokens/tokenizer.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

class TokenTest : public testing::Test {
 protected:
  /// A file of the tokens 0, 1, 2, ...
  fs::path counting_file(std::size_t num_tokens) {
    std::vector<std::uint16_t> tokens(num_tokens);
    std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
    fs::path file = scratch_.path() / "tokens.bin";
    TokenFileWriter writer(file);
    writer.append(std::span(tokens).first(num_tokens / 2));
    writer.append(std::span(tokens).subspan(num_tokens / 2));
    writer.finish();
    return file;
  }

  static std::string error_of(const fs::path& file, std::int64_t vocab = 65536) {
    try {
      const TokenFile opened(file, vocab);
      return "good";
    } catch (const Error& error) {
      return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    }
  }

  ScratchDirectory scratch_;
};

TEST_F(TokenTest, WrittenAndRead) {
  const TokenFile file(counting_file(1000));
  ASSERT_EQ(file.size(), 1000);
  std::vector<std::uint16_t> tokens(1000);
  file.read(0, tokens);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(tokens[i], i);
  EXPECT_EQ(fs::file_size(file.path()), 1024U + 2000U);
}

TEST_F(TokenTest, AnUnfinishedFileLeavesNothing) {
  { TokenFileWriter writer(scratch_.path() / "none.bin"); }
  EXPECT_TRUE(fs::is_empty(scratch_.path()));
}

TEST_F(TokenTest, BadFilesAreNamedWithTheOffset) {
  const fs::path file = counting_file(100);
  const std::string good = slurp(file);
  EXPECT_EQ(error_of(file, 100), "good");
  const auto with_word = [&](std::size_t word, std::int32_t value) {
    std::string bad = good;
    std::memcpy(bad.data() + 4 * word, &value, sizeof(value));
    return bad;
  };
  const auto expect = [&](const std::string& content, const std::string& part) {
    spill(file, content);
    const std::string error = error_of(file);
    EXPECT_TRUE(error.starts_with("65 " + file.string())) << error;
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect("", "0 bytes");
  expect(good.substr(0, 1000), "1000 bytes");
  expect(with_word(0, 20240326), "offset 0: magic number 20240326");
  expect(with_word(1, 2), "offset 4: version 2");
  expect(with_word(2, 99), "offset 8: 99 tokens");
  expect(with_word(2, -100), "offset 8: -100 tokens");
  expect(good.substr(0, good.size() - 1), "offset 8: 100 tokens");
  expect(good + "x", "offset 8: 100 tokens");
  EXPECT_TRUE(error_of(scratch_.path() / "missing.bin").starts_with("74 "));
}

TEST_F(TokenTest, ATokenBeyondTheVocabularyIsNamedWithItsOffset) {
  const fs::path file = counting_file(200000 % 65536 + 3);  // several blocks are not needed to count past 257
  EXPECT_NE(error_of(file, 257).find(
                fmt::format("offset {}: token 257 is 257, the vocabulary has 257", 1024 + 2 * 257)),
            std::string::npos)
      << error_of(file, 257);
}

TEST_F(TokenTest, TooShortForAContext) {
  const fs::path file = counting_file(64);
  EXPECT_EQ(TokenDataset(TokenFile(file), 63, 1).num_windows(), 1);
  try {
    const TokenDataset dataset(TokenFile(file), 64, 1);
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
  }
}

TEST_F(TokenTest, AnEpochReadsEveryWindowOnceAtOnePhase) {
  for (const std::size_t num_tokens : {9U, 10U, 17U, 100U, 1001U, 5000U}) {
    constexpr std::int64_t seq_len = 8;
    const TokenDataset data(TokenFile(counting_file(num_tokens)), seq_len, 7);
    const std::int64_t n = data.num_windows();
    std::vector<std::int32_t> window(seq_len + 1);
    std::vector<std::vector<std::int64_t>> orders;
    std::set<std::int64_t> phases;
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<std::int64_t> starts;
      for (std::int64_t i = 0; i < n; ++i) {
        data.sample(epoch * n + i, window.data());
        for (std::size_t t = 1; t < window.size(); ++t) ASSERT_EQ(window[t], window[t - 1] + 1);
        starts.push_back(window[0]);
      }
      orders.push_back(starts);
      std::sort(starts.begin(), starts.end());
      phases.insert(starts[0]);
      ASSERT_LT(starts[0], seq_len);
      for (std::int64_t i = 0; i < n; ++i)
        ASSERT_EQ(starts[static_cast<std::size_t>(i)], starts[0] + i * seq_len);
    }
    if (num_tokens >= 1000) {
      EXPECT_GT(phases.size(), 1U);
      EXPECT_NE(orders[0], orders[1]);
      EXPECT_FALSE(std::is_sorted(orders[0].begin(), orders[0].end()));
    }
  }
}

TEST_F(TokenTest, TheOrderDependsOnSeedAndIndexAlone) {
  const fs::path file = counting_file(3000);
  const TokenDataset a(TokenFile(file), 16, 1);
  const TokenDataset b(TokenFile(file), 16, 1);
  const TokenDataset other(TokenFile(file), 16, 2);
  std::vector<std::int32_t> x(17);
  std::vector<std::int32_t> y(17);
  int different = 0;
  for (std::int64_t i = 999; i >= 0; --i) {
    a.sample(i, x.data());
    b.sample(i, y.data());
    ASSERT_EQ(x, y);
    other.sample(i, y.data());
    different += x != y ? 1 : 0;
  }
  EXPECT_GT(different, 900);
}

TEST_F(TokenTest, EvaluationReadsInFileOrder) {
  const TokenDataset data(TokenFile(counting_file(33)), 8, 1);
  ASSERT_EQ(data.num_sequential(), 4);
  std::vector<std::int32_t> window(9);
  for (std::int64_t i = 0; i < 4; ++i) {
    data.sequential(i, window.data());
    EXPECT_EQ(window.front(), i * 8);
    EXPECT_EQ(window.back(), i * 8 + 8);
  }
}

TEST(ByteTokenizer, RoundTrip) {
  const auto tokenizer = make_tokenizer("bytes");
  std::string text;
  for (int c = 0; c < 256; ++c) text += static_cast<char>(c);
  const auto tokens = tokenizer->encode(text);
  EXPECT_EQ(tokens.size(), 256U);
  EXPECT_EQ(tokens.back(), 255);
  EXPECT_EQ(tokenizer->decode(tokens), text);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  const std::vector<std::uint16_t> end = {tokenizer->end_of_text()};
  EXPECT_EQ(tokenizer->decode(end), "<|endoftext|>");
  const std::vector<std::uint16_t> outside = {257};
  EXPECT_THROW(tokenizer->decode(outside), Error);
  EXPECT_THROW(make_tokenizer("none"), Error);
}

TEST(Tokenizers, AreMadeByTheirNames) {
  EXPECT_EQ(tokenizer_names("|"), "bytes");
  for (const TokenizerDescriptor& descriptor : tokenizers()) {
    const auto tokenizer = make_tokenizer(descriptor.name);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("some text")), "some text") << descriptor.name;
    EXPECT_LT(tokenizer->end_of_text(), tokenizer->vocab_size()) << descriptor.name;
  }
}

}  // namespace
}  // namespace mylos::test
