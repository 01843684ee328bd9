// SPDX-License-Identifier: BSD-3-Clause
// Token files, good and bad, and the order of samples.
#include "io/tokens/token_dataset.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "io/tokens/sample_stream.hpp"
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

  static TokenDataset dataset_of(const fs::path& file, std::int64_t seq_len, std::uint64_t seed = 1) {
    return open_dataset(parse_sources(file.string()), TokenFile::most_ids, seq_len, seed);
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
  expect(with_word(0, 20240519), "offset 0: magic number 20240519");
  expect(with_word(1, 2), "offset 4: version 2");
  expect(with_word(2, 99), "offset 8: 99 tokens");
  expect(with_word(2, -100), "offset 8: -100 tokens");
  expect(good.substr(0, good.size() - 1), "offset 8: 100 tokens");
  expect(good + "x", "offset 8: 100 tokens");
  EXPECT_TRUE(error_of(scratch_.path() / "missing.bin").starts_with("74 "));
}

TEST_F(TokenTest, PagesFromTheFirstToTheLastMakeTheIdentity) {
  const fs::path file = counting_file(9000);  // five pages
  const auto identity = [&] { return TokenFile(file, TokenFile::most_ids, TokenFormat::llmc, 3).identity(); };
  const std::string whole = slurp(file);
  const std::string expected = identity();
  for (const std::size_t at : {std::size_t{1024}, std::size_t{1024 + 2 * 4096}, whole.size() - 2}) {
    std::string other = whole;
    other[at] ^= 1;
    spill(file, other);
    EXPECT_NE(identity(), expected) << at;
  }
}

TEST_F(TokenTest, ATokenBeyondTheVocabularyIsNamedWithItsOffset) {
  const fs::path file = counting_file(200000 % 65536 + 3);
  EXPECT_NE(error_of(file, 257).find(
                fmt::format("offset {}: token 257 is 257; the vocabulary has 257", 1024 + 2 * 257)),
            std::string::npos)
      << error_of(file, 257);
}

TEST_F(TokenTest, TooShortForAContext) {
  const fs::path file = counting_file(64);
  EXPECT_EQ(dataset_of(file, 63).num_windows(), 1);
  try {
    const TokenDataset dataset = dataset_of(file, 64);
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
  }
}

TEST_F(TokenTest, AnEpochReadsEveryWindowOnceAtOnePhase) {
  for (const std::size_t num_tokens : {9U, 10U, 17U, 100U, 1001U, 5000U}) {
    constexpr std::int64_t seq_len = 8;
    const TokenDataset data = dataset_of(counting_file(num_tokens), seq_len, 7);
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
  const TokenDataset a = dataset_of(file, 16, 1);
  const TokenDataset b = dataset_of(file, 16, 1);
  const TokenDataset other = dataset_of(file, 16, 2);
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
  const TokenDataset data = dataset_of(counting_file(33), 8);
  const EvaluationWindows windows(data);
  ASSERT_EQ(windows.size(), 4);
  std::vector<std::int32_t> window(9);
  for (std::int64_t i = 0; i < 4; ++i) {
    data.read(windows[i].file, windows[i].first, window);
    EXPECT_EQ(window.front(), i * 8);
    EXPECT_EQ(window.back(), i * 8 + 8);
  }
}

/// Versions of mylos that read only one file used this order; restarts continue runs of these versions.
TEST_F(TokenTest, OneFileHasTheOrderThatItAlwaysHad) {
  const TokenDataset data = dataset_of(counting_file(5000), 8, 7);
  std::vector<std::int32_t> window(9);
  const auto start_of = [&](std::int64_t i) {
    data.sample(i, window.data());
    return window[0];
  };
  const std::vector<std::pair<std::int64_t, std::int32_t>> expected = {
      {0, 4692},   {1, 3076},    {2, 572},     {100, 3884},     {622, 2268},         {623, 388},
      {624, 3925}, {1245, 2125}, {1246, 2269}, {1000000, 3871}, {123456789012, 3970}};
  for (const auto& [index, start] : expected) EXPECT_EQ(start_of(index), start) << index;
}

class Sources : public TokenTest {
 protected:
  /// Makes one file for each of `sizes`; token i of all the files made so far is i. Returns their pattern.
  std::string counting_files(const std::string& stem, const std::vector<std::size_t>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::vector<std::uint16_t> tokens(sizes[i]);
      std::iota(tokens.begin(), tokens.end(), next_);
      next_ = static_cast<std::uint16_t>(next_ + sizes[i]);
      TokenFileWriter writer(path(fmt::format("{}_{}.bin", stem, i)));
      writer.append(tokens);
      writer.finish();
    }
    return path(stem + "_*.bin").string();
  }
  fs::path path(const std::string& name) const { return scratch_.path() / name; }
  static TokenDataset open(const std::string& text, std::int64_t seq_len, std::int64_t vocab = 65536) {
    return open_dataset(parse_sources(text), vocab, seq_len, 3);
  }
  static std::string open_error(const std::string& text, std::int64_t vocab = 65536) {
    try {
      open(text, 8, vocab);
      return "good";
    } catch (const Error& error) {
      return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    }
  }
  static std::vector<std::int32_t> sample(const TokenDataset& data, std::int64_t index) {
    std::vector<std::int32_t> window(static_cast<std::size_t>(data.seq_len() + 1));
    data.sample(index, window.data());
    return window;
  }

 private:
  std::uint16_t next_ = 0;
};

TEST_F(Sources, OfManyFilesReadEachWindowOnceAnEpoch) {
  const std::vector<std::size_t> sizes = {100, 9, 8, 1, 0, 41, 300};
  const TokenDataset data = open(counting_files("t", sizes), 8);
  EXPECT_EQ(data.num_files(), sizes.size());
  EXPECT_EQ(data.num_tokens(), 459);
  EXPECT_EQ(data.num_windows(), 11 + 1 + 4 + 36);
  std::set<std::vector<std::int32_t>> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::map<std::int32_t, std::vector<std::int32_t>> starts_of;  // by the first token of the file
    std::vector<std::int32_t> order;
    for (std::int64_t i = 0; i < data.num_windows(); ++i) {
      const std::vector<std::int32_t> window = sample(data, epoch * data.num_windows() + i);
      std::int32_t begin = 0;
      for (const std::size_t size : sizes) {
        const auto end = begin + static_cast<std::int32_t>(size);
        if (window[0] < end) {
          ASSERT_LT(window.back(), end) << "a window crosses files";
          break;
        }
        begin = end;
      }
      for (std::size_t t = 1; t < window.size(); ++t) ASSERT_EQ(window[t], window[t - 1] + 1);
      starts_of[begin].push_back(window[0]);
      order.push_back(window[0]);
    }
    for (auto& [begin, starts] : starts_of) {
      std::ranges::sort(starts);
      EXPECT_LT(starts[0], begin + 8);
      for (std::size_t i = 1; i < starts.size(); ++i) ASSERT_EQ(starts[i], starts[i - 1] + 8);
    }
    EXPECT_EQ(starts_of[0].size(), 11U);
    EXPECT_EQ(starts_of[100].size(), 1U);
    EXPECT_EQ(starts_of[118].size(), 4U);
    EXPECT_EQ(starts_of[159].size(), 36U);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST_F(Sources, AreReadByWeightEachInItsOwnEpochs) {
  const std::string a = counting_files("a", {1000, 500});
  const std::string b = counting_files("b", {200});
  const TokenDataset both = open(a + ":0.7, " + b + ":0.3", 8);
  ASSERT_EQ(both.num_sources(), 2U);
  EXPECT_EQ(both.num_windows(0), 124 + 61);
  EXPECT_EQ(both.num_windows(1), 24);
  const TokenDataset first = open(a, 8);  // the first source has the same order as alone
  std::int64_t of_a = 0;
  std::map<std::int32_t, int> windows_of_b;
  for (std::int64_t i = 0; i < 800; ++i) {
    const std::vector<std::int32_t> window = sample(both, i);
    if (window[0] < 1500) {
      ASSERT_EQ(window, sample(first, of_a++)) << i;
    } else {
      ++windows_of_b[window[0] / 8];
    }
    ASSERT_LT(std::abs(10 * of_a - 7 * (i + 1)), 10) << i;
    ASSERT_EQ(both.epochs(0, i + 1), static_cast<double>(of_a) / 185);
    ASSERT_EQ(both.epochs(1, i + 1), static_cast<double>(i + 1 - of_a) / 24);
  }
  EXPECT_EQ(both.epochs(1, 800), 10.0);
}

/// The order does not depend on which reader reads which samples, or on where a reader starts.
TEST_F(Sources, AreInOneOrderOnEveryLayout) {
  const std::string text = counting_files("a", {3000, 70}) + ":5," + counting_files("b", {900}) + ":3";
  std::vector<std::vector<std::int32_t>> expected;
  const TokenDataset whole = open(text, 16);
  for (std::int64_t i = 0; i < 240; ++i) expected.push_back(sample(whole, i));
  for (const std::int64_t readers : {1, 2, 3, 5}) {
    for (std::int64_t reader = 0; reader < readers; ++reader) {
      constexpr std::int64_t batch = 4;
      SampleStream stream(open(text, 16), batch, batch * readers);
      std::vector<std::int32_t> tokens(batch * 17);
      for (std::int64_t first = 120 + reader * batch; first + batch <= 240; first += batch * readers) {
        stream.read(first, tokens);
        for (std::int64_t b = 0; b < batch; ++b) {
          const auto row = tokens.begin() + b * 17;
          ASSERT_TRUE(std::equal(row, row + 17, expected[static_cast<std::size_t>(first + b)].begin()));
        }
      }
    }
  }
}

TEST_F(Sources, MayBeAskedForInAnyOrder) {
  const std::string text = counting_files("a", {3000});
  const TokenDataset whole = open(text, 16);
  SampleStream stream(open(text, 16), 1, 1);
  std::vector<std::int32_t> tokens(17);
  for (const std::int64_t first : {7, 8, 9, 9, 3, 4, 100, 5, 6, 0}) {
    stream.read(first, tokens);
    EXPECT_EQ(tokens, sample(whole, first)) << first;
  }
}

TEST_F(Sources, FailOnlyWhoeverAsksForWhatIsBad) {
  const std::string text = counting_files("a", {500});
  const TokenDataset whole = open(text, 16);
  SampleStream stream(open(text, 16), 1, 1);
  std::vector<std::int32_t> tokens(17);
  stream.read(0, tokens);
  // The next batches may already be prefetched, or may fail like later batches; the test requests none of
  // them.
  fs::resize_file(path("a_0.bin"), 1024);
  fs::last_write_time(path("a_0.bin"), fs::file_time_type::clock::now() + std::chrono::hours(1));
  for (int i = 0; i < 2; ++i) {
    try {
      stream.read(100, tokens);
      ADD_FAILURE() << "read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::io);
      EXPECT_NE(std::string(error.what()).find(path("a_0.bin").string()), std::string::npos);
    }
  }
}

TEST_F(Sources, AreKnownByTheirContentAndWeights) {
  const std::string a = counting_files("a", {300, 200});
  const std::string b = counting_files("b", {400});
  const auto identity = [](const std::string& text) { return open(text, 8).identity(); };
  EXPECT_EQ(identity(path("a_0.bin").string()), TokenFile(path("a_0.bin")).identity());
  std::set<std::string> all = {identity(a),
                               identity(b),
                               identity(a + "," + b),
                               identity(b + "," + a),
                               identity(a + ":1," + b + ":1"),
                               identity(a + ":1," + b + ":2")};
  EXPECT_EQ(all.size(), 6U);
  EXPECT_EQ(identity(a + ":1," + b + ":2"), identity(a + ":10," + b + ":20"));
  fs::copy_file(path("a_0.bin"), path("copy_0.bin"));
  fs::copy_file(path("a_1.bin"), path("copy_1.bin"));
  EXPECT_EQ(identity(path("copy_*.bin").string()), identity(a));
  std::string content = slurp(path("copy_1.bin"));
  content[1024 + 77] ^= 1;
  spill(path("copy_1.bin"), content);
  EXPECT_NE(identity(path("copy_*.bin").string()), identity(a));
}

TEST_F(Sources, MayHaveNoHeader) {
  std::vector<std::uint16_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  const std::string bytes(reinterpret_cast<const char*>(tokens.data()), 200);
  const std::string name = path("nano.bin").string();
  spill(name, bytes);
  const TokenDataset data = open("nanogpt=" + name, 8);
  EXPECT_EQ(data.num_tokens(), 100);
  std::vector<std::int32_t> window(9);
  data.read(0, 88, window);
  EXPECT_EQ(window[0], 88);
  EXPECT_EQ(open_error(name),
            fmt::format("65 {} has 200 bytes; a token file begins with a header of 1024", name));
  EXPECT_EQ(open_error("nanogpt=" + name, 99),
            fmt::format("65 {}: offset 198: token 99 is 99; the vocabulary has 99", name));
  spill(name, bytes + "x");
  EXPECT_EQ(open_error("nanogpt=" + name),
            fmt::format("65 {}: offset 200: half a token; 201 bytes are not a whole number of tokens", name));
  const fs::path with_header = counting_file(10);
  EXPECT_NE(open_error("nanogpt=" + with_header.string()).find("offset 0: the header of llm.c's format"),
            std::string::npos);
  std::string damaged = slurp(with_header);
  damaged[0] ^= 1;
  spill(with_header, damaged);
  EXPECT_NE(open_error(with_header.string()).find("as nanogpt=NAME"), std::string::npos);
}

TEST_F(Sources, NameTheFileThatIsBad) {
  const std::string a = counting_files("a", {300, 200, 100});
  EXPECT_EQ(open_error(a), "good");
  EXPECT_NE(open_error(a, 599).find(path("a_2.bin").string() + ": offset 1222: token 99 is 599"),
            std::string::npos)
      << open_error(a, 599);
  counting_files("short", {8, 7});
  EXPECT_EQ(
      open_error(path("short_*.bin").string()),
      fmt::format("65 {} has 8 tokens and the other files of its source have no more; a context of 8 needs 9",
                  path("short_0.bin").string()));
  const TokenDataset data = open(a, 8);
  fs::resize_file(path("a_1.bin"), 1100);
  std::string error;
  std::vector<std::int32_t> window(9);
  for (std::int64_t i = 0; i < data.num_windows() && error.empty(); ++i) {
    try {
      data.sample(i, window.data());
    } catch (const Error& thrown) {
      error = thrown.what();
    }
  }
  EXPECT_NE(error.find(path("a_1.bin").string() + " ends at offset 1100"), std::string::npos) << error;
}

TEST_F(Sources, RaiseTheLimitOfOpenFiles) {
  const std::string text = counting_files("t", std::vector<std::size_t>(100, 20));
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few = {.rlim_cur = 64, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(open_error(text), "good");
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_F(Sources, AgreeOnTheirTokenizer) {
  const std::string a = counting_files("a", {300, 200});
  const Sidecar sidecar = {.tokenizer = {.name = "gpt2", .ranks = "12"},
                           .vocab = 50257,
                           .tokens = 300,
                           .content = "",
                           .documents = 1};
  EXPECT_FALSE(open(a, 8).origin());
  write_sidecar(path("a_0.bin"), sidecar);
  const TokenDataset data = open(a, 8, 50257);
  ASSERT_TRUE(data.origin());
  EXPECT_EQ(data.origin()->tokenizer.text(), "gpt2 (ranks 12)");
  EXPECT_EQ(data.origin()->file, path("a_0.bin"));
  EXPECT_EQ(open_error(a, 50304), "good");  // a padded vocabulary
  EXPECT_EQ(
      open_error(a, 257),
      fmt::format("2 [model] vocab = 257, but {} holds tokens of gpt2 (ranks 12), which has a vocabulary "
                  "of 50257",
                  path("a_0.bin").string()));
  Sidecar other = sidecar;
  other.tokens = 200;
  write_sidecar(path("a_1.bin"), other);
  EXPECT_EQ(open_error(a, 50257), "good");
  other.tokenizer.ranks = "13";
  write_sidecar(path("a_1.bin"), other);
  EXPECT_EQ(open_error(a, 50257),
            fmt::format("2 {} holds tokens of gpt2 (ranks 13), but {} holds tokens of gpt2 (ranks 12)",
                        path("a_1.bin").string(), path("a_0.bin").string()));
  write_sidecar(path("a_1.bin"), sidecar);
  EXPECT_EQ(open_error(a, 50257),
            fmt::format("65 {0}.json describes 300 tokens, but {0} has 200: they do not belong together",
                        path("a_1.bin").string()));
}

TEST_F(Sources, OfManyFilesAreReadInOrderByEvaluations) {
  const TokenDataset data = open(counting_files("t", {20, 0, 5, 33}), 8);
  const EvaluationWindows windows(data);
  ASSERT_EQ(windows.size(), 2 + 4);
  EXPECT_EQ(windows.targets(), (std::vector<std::int64_t>{16, 0, 0, 32}));
  std::vector<std::int32_t> starts;
  std::vector<std::int32_t> window(9);
  for (std::int64_t i = 0; i < windows.size(); ++i) {
    EXPECT_EQ(windows[i].inputs, 8);
    EXPECT_EQ(windows[i].counted, 8);
    data.read(windows[i].file, windows[i].first, window);
    EXPECT_EQ(window[8], window[0] + 8);
    starts.push_back(window[0]);
  }
  EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 8, 25, 33, 41, 49}));
}

/// Against the loop of transformers' guide to perplexity, whose windows of T + 1 tokens have T targets.
TEST_F(Sources, WithAStrideCountEachTargetOnce) {
  constexpr std::int64_t seq_len = 8;
  const std::vector<std::size_t> sizes = {20, 0, 1, 2, 5, 8, 9, 10, 33, 16, 17, 18};
  const TokenDataset data = open_dataset(parse_sources(counting_files("t", sizes)), TokenFile::most_ids,
                                         seq_len, 3, "none", ShortFiles::read);
  for (std::int64_t stride = 1; stride <= seq_len; ++stride) {
    SCOPED_TRACE(stride);
    const EvaluationWindows windows(data, stride);
    EXPECT_EQ(windows.stride(), stride);
    std::int64_t index = 0;
    for (std::size_t i = 0; i < data.num_files(); ++i) {
      SCOPED_TRACE(fmt::format("file {}", i));
      const std::int64_t size = data.files()[i].size();
      std::int64_t counted = 0;
      for (std::int64_t begin = 0, previous_end = 1; size > 1; begin += stride) {
        const std::int64_t end = std::min(begin + seq_len + 1, size);
        ASSERT_LT(index, windows.size());
        const EvaluationWindows::Window window = windows[index++];
        ASSERT_EQ(window.file, i);
        ASSERT_EQ(window.first, begin);
        ASSERT_EQ(window.inputs, end - begin - 1);
        ASSERT_EQ(window.counted, end - previous_end);
        ASSERT_GT(window.counted, 0);
        counted += window.counted;
        previous_end = end;
        if (end == size) break;
      }
      EXPECT_EQ(counted, std::max<std::int64_t>(size - 1, 0));
      EXPECT_EQ(windows.targets()[i], counted);
    }
    EXPECT_EQ(index, windows.size());
  }
}

TEST_F(Sources, WithAStrideMayBeShort) {
  const auto open_short = [](const std::string& text) {
    return open_dataset(parse_sources(text), TokenFile::most_ids, 8, 3, "none", ShortFiles::read);
  };
  EXPECT_EQ(open_short(counting_files("a", {2, 3})).warnings(), std::vector<std::string>{});
  const std::vector<std::string> warnings = open_short(counting_files("b", {2, 1, 0})).warnings();
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0], fmt::format("{} with 1 tokens and 1 more file are shorter than a window of 2 tokens "
                                     "and never read",
                                     path("b_1.bin").string()));
  const std::string text = counting_files("c", {1, 0});
  try {
    open_short(text);
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_EQ(std::string(error.what()),
              fmt::format("{} has 1 tokens and the other files of its source have no more; an evaluation "
                          "needs 2",
                          path("c_0.bin").string()));
  }
}

}  // namespace
}  // namespace mylos::test
