// SPDX-License-Identifier: BSD-3-Clause
// From documents to token files: the result is the same for any number of threads, any length of documents
// and any interruptions.
#include "io/tokens/tokenize_corpus.hpp"

#include <optional>
#include <random>

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "io/json.hpp"
#include "io/tokens/bpe_tokenizer.hpp"
#include "io/tokens/shard_progress.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/io/small_ranks.hpp"

namespace mylos::test {
namespace {

using testing::StartsWith;
using Tokens = std::vector<std::uint16_t>;

struct Stopped {};

class TokenizeCorpus : public testing::Test {
 protected:
  static constexpr std::array<const char*, 2> names = {"train", "val"};

  fs::path file(const std::string& name) const { return scratch_.path() / name; }

  /// Writes JSON lines with `documents`.
  void spill_lines(const std::string& name, const std::vector<std::string>& documents) const {
    std::string lines;
    for (const std::string& document : documents) {
      lines += Json::object({{"id", 1}, {"text", document}}).dump() + "\n";
      if (lines.size() % 3 == 0) lines += " \n";  // blank
    }
    spill(file(name), lines);
  }

  /// Tokenizes `places`; throws `Stopped` as soon as more than `blocks` blocks are written.
  TokenizeProgress run(const std::vector<std::string>& places, const std::string& output,
                       std::int64_t blocks = std::numeric_limits<std::int64_t>::max()) {
    const auto inputs = find_corpus(places, std::nullopt);
    if (!continues_) positions_ = {};
    std::array<std::optional<ShardWriter>, 2> writers;
    for (std::size_t split = 0; split < 2; ++split) {
      const auto name = [this, output, split](std::int64_t shard) {
        return file(fmt::format("{}_{}_{}.bin", output, names[split], shard));
      };
      const auto finished = [&, split](const fs::path&, std::int64_t) {
        positions_[split] = writers[split]->position();
      };
      writers[split].emplace(ShardWriter::Settings{.tokenizer = tokenizer_->identity(),
                                                   .vocab = tokenizer_->vocab_size(),
                                                   .shard_tokens = shard_tokens_,
                                                   .file = name,
                                                   .finished = finished},
                             positions_[split]);
    }
    std::int64_t seen = 0;
    const auto result = tokenize_corpus(inputs, *tokenizer_, settings_, {&*writers[0], &*writers[1]},
                                        [&](const TokenizeProgress&) {
                                          if (++seen > blocks) throw Stopped();
                                        });
    for (auto& writer : writers) writer->finish();
    return result;
  }

  /// All tokens of a split, shard after shard.
  Tokens written(const std::string& output, Split split, std::int64_t* documents = nullptr) const {
    Tokens all;
    for (std::int64_t shard = 0;; ++shard) {
      const fs::path path =
          file(fmt::format("{}_{}_{}.bin", output, names[static_cast<std::size_t>(split)], shard));
      if (!fs::exists(path)) return all;
      const TokenFile opened(path);
      Tokens tokens(static_cast<std::size_t>(opened.size()));
      opened.read(0, tokens);
      const auto sidecar = read_sidecar(path);
      EXPECT_TRUE(sidecar);
      EXPECT_EQ(sidecar->tokens, opened.size());
      EXPECT_EQ(sidecar->vocab, tokenizer_->vocab_size());
      EXPECT_EQ(sidecar->tokenizer, tokenizer_->identity());
      Digester digester;
      digester.add(tokens.data(), tokens.size() * sizeof(tokens[0]));
      EXPECT_EQ(sidecar->content, digester.digest().text());
      if (documents != nullptr) *documents += sidecar->documents;
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
  }

  /// The tokens of those of `documents` that belong to `split`, encoded one by one.
  Tokens expected(const std::vector<std::string>& documents, Split split) const {
    Tokens all;
    for (std::size_t d = 0; d < documents.size(); ++d) {
      if (settings_.split.of(static_cast<std::int64_t>(d)) != split) continue;
      if (settings_.end_of_text_begins) all.push_back(tokenizer_->end_of_text());
      const Tokens tokens = tokenizer_->encode(documents[d]);
      all.insert(all.end(), tokens.begin(), tokens.end());
      if (!settings_.end_of_text_begins) all.push_back(tokenizer_->end_of_text());
    }
    return all;
  }

  /// Documents of up to 399 random words.
  static std::vector<std::string> documents(std::size_t count) {
    std::mt19937 random(6);
    const std::vector<std::string> words = {"the ", " the", "aa",           "'s",  "\u3000",
                                            "\n\n", "12",   "\u4e00\u4e8c", "x, ", "  "};
    std::vector<std::string> documents;
    for (std::size_t d = 0; d < count; ++d) {
      std::string text;
      for (std::size_t i = random() % 400; i > 0; --i) text += words[random() % words.size()];
      documents.push_back(text);
    }
    return documents;
  }

  std::string error_of(const std::vector<std::string>& places) {
    try {
      run(places, "error");
      return "good";
    } catch (const Error& error) {
      return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    }
  }

  ScratchDirectory scratch_;
  std::unique_ptr<Tokenizer> tokenizer_ = std::make_unique<BpeTokenizer>(ranks_of(
      {{"t", "h"}, {"th", "e"}, {" ", "the"}, {"a", "a"}, {"1", "2"}, {"\xe4", "\xb8"}, {"\n", "\n"}}));
  TokenizeSettings settings_;
  std::int64_t shard_tokens_ = 0;
  std::array<ShardPosition, 2> positions_;  // after the last whole shards
  bool continues_ = false;
};

TEST_F(TokenizeCorpus, OfTextsAndLinesInTheirOrder) {
  const auto all = documents(2000);
  spill(file("a.txt"), all[0]);
  spill_lines("b.jsonl", {all.begin() + 1, all.end() - 2});
  fs::create_directory(file("c"));
  spill(file("c/1.txt"), all[all.size() - 2]);
  spill(file("c/2.txt"), all.back());
  spill(file("c/ignored.bin"), "no text");
  for (const int threads : {1, 2, 3}) {
    settings_.threads = threads;
    settings_.end_of_text_begins = threads == 2;
    const auto done = run({file("a.txt"), file("b.*"), file("c")}, "out");
    EXPECT_EQ(done.documents, 2000);
    std::int64_t count = 0;
    const Tokens tokens = written("out", Split::train, &count);
    EXPECT_EQ(count, 2000);
    ASSERT_EQ(done.tokens, std::ssize(tokens));
    ASSERT_TRUE(tokens == expected(all, Split::train));
  }
  EXPECT_FALSE(fs::exists(file("out_val_0.bin")));
}

TEST_F(TokenizeCorpus, SplitDependsOnSeedAndDocumentAlone) {
  const auto all = documents(2000);
  spill_lines("a.jsonl", all);
  settings_.split = {.seed = 3, .valid_fraction = 0.2, .has_two_parts = false};
  for (const int threads : {1, 4}) {
    settings_.threads = threads;
    run({file("a.jsonl")}, "out");
    ASSERT_TRUE(written("out", Split::train) == expected(all, Split::train));
    ASSERT_TRUE(written("out", Split::valid) == expected(all, Split::valid));
  }
  std::int64_t held_out = 0, other = 0;
  for (std::int64_t d = 0; d < 2000; ++d) {
    const bool is_valid = settings_.split.of(d) == Split::valid;
    held_out += is_valid ? 1 : 0;
    other += is_valid != (SplitRule{.seed = 4, .valid_fraction = 0.2}.of(d) == Split::valid) ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(held_out), 400.0, 80.0);
  EXPECT_GT(other, 300);
}

TEST_F(TokenizeCorpus, DocumentsOfManyBlocks) {
  // The second text has no white space at which it could be cut, and its line is too long to be held in
  // memory. The third is one piece of several blocks.
  std::string words, wide;
  while (words.size() < 3 * CorpusReader::block_bytes) words += "the aa12 ";
  while (wide.size() < 2 * CorpusReader::most_line_bytes)
    wide += wide.size() % 5 == 0 ? "\u4e00\u4e8c12" : "\u4e00!";
  const std::string letters(3 * CorpusReader::block_bytes, 'a');
  spill(file("1.txt"), words);
  spill(file("2.txt"), wide);
  spill(file("3.txt"), letters);
  spill(file("4.txt"), "");  // an empty file is left out
  spill_lines("5.jsonl", {"x", wide, "", letters + " " + words, "y"});
  settings_.threads = 2;
  const std::vector<std::string> all = {words, wide, letters, "x", wide, "", letters + " " + words, "y"};
  EXPECT_EQ(run({scratch_.path()}, "out").documents, 8);
  ASSERT_TRUE(written("out", Split::train) == expected(all, Split::train));
  // The byte tokenizer may cut text anywhere.
  tokenizer_ = make_tokenizer("bytes");
  run({scratch_.path()}, "bytes");
  ASSERT_TRUE(written("bytes", Split::train) == expected(all, Split::train));
}

TEST_F(TokenizeCorpus, ShardsHoldJustAsManyTokens) {
  const auto all = documents(300);
  spill_lines("a.jsonl", all);
  settings_.split = {.seed = 1, .valid_fraction = 0.3, .has_two_parts = false};
  shard_tokens_ = 4001;
  std::int64_t count = 0;
  run({file("a.jsonl")}, "out");
  for (const Split split : {Split::train, Split::valid})
    ASSERT_TRUE(written("out", split, &count) == expected(all, split));
  EXPECT_EQ(count, 300);
  EXPECT_EQ(TokenFile(file("out_train_0.bin")).size(), 4001);
  EXPECT_EQ(TokenFile(file("out_train_3.bin")).size(), 4001);
}

TEST_F(TokenizeCorpus, ContinuesBehindWholeShards) {
  const auto all = documents(4000);
  spill_lines("a.jsonl", all);
  settings_.split = {.seed = 1, .valid_fraction = 0.1, .has_two_parts = false};
  settings_.threads = 2;
  shard_tokens_ = 20000;
  continues_ = true;
  std::int64_t blocks = 0;
  for (bool is_done = false; !is_done; ++blocks) {
    try {
      run({file("a.jsonl")}, "out", blocks);
      is_done = true;
    } catch (const Stopped&) {
      for (const auto& entry : fs::directory_iterator(scratch_.path()))
        ASSERT_NE(entry.path().extension(), ".tmp") << entry.path();
    }
  }
  EXPECT_GT(blocks, 3);
  std::int64_t count = 0;
  for (const Split split : {Split::train, Split::valid})
    ASSERT_TRUE(written("out", split, &count) == expected(all, split));
  EXPECT_EQ(count, 4000);
}

/// If the old sidecar stayed, a job that dies before it writes the new one would leave the tokens of one text
/// with the sidecar of another.
TEST_F(TokenizeCorpus, AFileThatIsReplacedLosesItsSidecarFirst) {
  spill(file("a.txt"), "one text");
  run({file("a.txt")}, "out");
  const fs::path shard = file("out_train_0.bin");
  ASSERT_TRUE(fs::exists(sidecar_path(shard)));
  fs::create_directory(sidecar_path(shard).string() + ".tmp");  // in the way of the new sidecar
  EXPECT_THROW(run({file("a.txt")}, "out"), Error);
  EXPECT_TRUE(fs::exists(shard));
  EXPECT_FALSE(fs::exists(sidecar_path(shard)));
}

TEST_F(TokenizeCorpus, TheFirstErrorIsNamedWithFileAndLine) {
  auto all = documents(3000);
  spill_lines("good.jsonl", all);
  std::string lines = "\n";
  for (int i = 0; i < 50000; ++i)
    lines += i == 40000 || i == 45000 ? "{\"text\": 1}\n" : "{\"text\": \"a\"}\n";
  spill(file("z.jsonl"), lines);
  settings_.threads = 3;
  EXPECT_EQ(error_of({file("good.jsonl"), file("z.jsonl")}),
            fmt::format("65 {}:40002: \"text\" is not text", file("z.jsonl").string()));
  EXPECT_FALSE(fs::exists(file("error_train_0.bin")));
  // An error in a line that is too long to be held in memory.
  spill(file("z.jsonl"),
        "{\"text\":\"a\"}\n{\"text\":\"" + std::string(3 * CorpusReader::most_line_bytes, 'a') + "\" x}\n");
  EXPECT_EQ(error_of({file("z.jsonl")}),
            fmt::format("65 {}:2: not JSON: 'x' is out of place", file("z.jsonl").string()));
  EXPECT_EQ(error_of({file("none.txt")}), fmt::format("2 no file matches {}", file("none.txt").string()));
  EXPECT_EQ(error_of({file("*.none")}), fmt::format("2 no file matches {}", file("*.none").string()));
  EXPECT_EQ(error_of({file("z.jsonl"), file("z*")}),
            fmt::format("2 {} is named twice", file("z.jsonl").string()));
  fs::create_directory(file("empty"));
  EXPECT_THAT(error_of({file("empty")}), StartsWith("2 "));
}

TEST_F(TokenizeCorpus, ProgressIsReadAsWritten) {
  const fs::path path = file("progress.json");
  EXPECT_FALSE(read_progress(path));
  ShardProgress progress{
      .settings = {{"--seed", "1"}, {"inputs", "2"}},
      .positions = {ShardPosition{.shards = 3, .document = 70, .token = 5}, ShardPosition{}},
      .done = true};
  write_progress(path, progress);
  const auto read = read_progress(path);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->positions, progress.positions);
  EXPECT_TRUE(read->done);
  check_same_settings(path, *read, progress);
  progress.settings[0].second = "2";
  EXPECT_THROW(check_same_settings(path, *read, progress), Error);
  progress.settings.erase(progress.settings.begin());
  EXPECT_THROW(check_same_settings(path, *read, progress), Error) << "one is missing";
  for (const char* text : {"", "{}", "{\"train\": 1}"}) {
    spill(path, text);
    EXPECT_THROW(read_progress(path), Error) << text;
  }
}

}  // namespace
}  // namespace mylos::test
