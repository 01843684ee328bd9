// SPDX-License-Identifier: BSD-3-Clause
// Token files are looked at before the user's word about them is believed; files that occur twice are named.
#include <random>

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "io/tokens/bpe_ranks.hpp"
#include "io/tokens/token_dataset.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using std::string_literals::operator""s;
using Ids = std::vector<std::uint16_t>;

class TokenContent : public testing::Test {
 protected:
  static constexpr std::int64_t seq_len = 16;

  std::string path(const std::string& name) const { return (scratch_.path() / name).string(); }

  void spill_ids(const std::string& name, const Ids& ids) const {
    spill(path(name), std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0])));
  }
  void write(const std::string& name, const Ids& ids) const {
    TokenFileWriter writer(path(name));
    writer.append(ids);
    writer.finish();
  }
  /// Ids below `most`, the same for the same seed.
  static Ids random_ids(std::size_t count, unsigned most, unsigned seed = 1) {
    std::mt19937 random(seed);
    Ids ids(count);
    for (std::uint16_t& id : ids) id = static_cast<std::uint16_t>(random() % most);
    return ids;
  }

  TokenDataset open(const std::string& text, std::int64_t vocab = 50257,
                    std::string_view tokenizer = "none") const {
    return open_dataset(parse_sources(text), vocab, seq_len, 1, tokenizer);
  }
  std::string error(const std::string& text, std::int64_t vocab = 50257) const {
    try {
      open(text, vocab);
      return "none";
    } catch (const Error& error) {
      return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    }
  }

  ScratchDirectory scratch_;
};

TEST_F(TokenContent, WhatIsNoTokenFileIsRefusedByItsContent) {
  const std::tuple<const char*, std::string, const char*> cases[] = {
      {"text", "a text of more than thirty-two bytes, as prose is.\n",
       "a text, not a token file; mylos tokenize"},
      {"utf8", "caf\u00e9 caf\u00e9 caf\u00e9 caf\u00e9 caf\u00e9 caf\u00e9 caf\u00e9",
       "a text, not a token file"},
      {"gzip", "\x1f\x8b\x08\0"s + std::string(60, '\1'),
       "is gzip data, not a token file: zcat PATH > NAME.bin"},
      {"npy", "\x93NUMPY\1\0"s + std::string(60, '\1'), "is a NumPy array, not a token file: python3 -c"},
      {"model", "\xc6\xd7\x34\x01"s + std::string(60, '\1'), "is a model or tokenizer of llm.c"},
      {"t.bin.json",
       "{\"content\": \"\", \"documents\": 1, \"tokenizer\": \"bytes\", \"tokens\": 5, \"vocab\": 257}",
       "is a sidecar that mylos has written"},
  };
  for (const auto& [name, bytes, with_path] : cases) {
    spill(path(name), bytes);
    std::string problem = with_path;
    if (const std::size_t at = problem.find("PATH"); at != std::string::npos)
      problem.replace(at, 4, path(name));
    for (const char* format : {"", "nanogpt="}) {
      EXPECT_THAT(error(format + path(name)), StartsWith("65 " + path(name))) << format;
      EXPECT_THAT(error(format + path(name)), HasSubstr(problem)) << format;
    }
  }
  spill(path("odd"), "\0\1\0"s);
  EXPECT_THAT(error("nanogpt=" + path("odd")), HasSubstr("half a token"));
  spill_ids("large", {1, 2, 300});
  EXPECT_THAT(error("nanogpt=" + path("large"), 257), HasSubstr("token 2 is 300; the vocabulary has 257"));
}

TEST_F(TokenContent, WhatHardlyIsOneOfTheTokenizerGetsAWarning) {
  const auto warnings = [&](const Ids& ids, std::int64_t vocab = 50257, std::string_view tokenizer = "none") {
    spill_ids("ids", ids);
    const auto of_nanogpt = open("nanogpt=" + path("ids"), vocab, tokenizer).warnings();
    write("ids.bin", ids);
    EXPECT_EQ(open(path("ids.bin"), vocab, tokenizer).warnings().size(), of_nanogpt.size());
    return of_nanogpt;
  };
  EXPECT_THAT(warnings(random_ids(5000, 50257)), IsEmpty());
  EXPECT_THAT(warnings(random_ids(5000, 65), 65), IsEmpty());
  EXPECT_THAT(warnings(random_ids(5000, 257), 50257), ElementsAre(HasSubstr("no id is above 256")));
  EXPECT_THAT(warnings(Ids(5000, 7)), ElementsAre(HasSubstr("every id is 7")));
  Ids wide = random_ids(5000, 50257);
  for (std::size_t i = 1; i < wide.size(); i += 2) wide[i] = 0;
  EXPECT_THAT(warnings(wide), ElementsAre(HasSubstr("every second id is 0")));
  EXPECT_THAT(warnings(random_ids(5000, 65), 257, "bytes"), ElementsAre(HasSubstr("are control characters")));
  Ids letters;
  for (int i = 0; i < 500; ++i) letters.insert(letters.end(), {'l', 'i', 'n', 'e', '\n'});
  EXPECT_THAT(warnings(letters, 257, "bytes"), IsEmpty());
  EXPECT_THAT(warnings({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), IsEmpty()) << "too few to judge";
  // The header and the sidecar say what the ids are.
  write("ids.bin", random_ids(5000, 65));
  write_sidecar(path("ids.bin"), {.tokenizer = {.name = "bytes", .ranks = ""},
                                  .vocab = 257,
                                  .tokens = 5000,
                                  .content = "",
                                  .documents = 1});
  EXPECT_THAT(open(path("ids.bin"), 257, "bytes").warnings(), IsEmpty());
}

TEST_F(TokenContent, FilesThatAreNeverReadAreNamed) {
  write("a.bin", random_ids(100, 50257));
  write("b.bin", random_ids(seq_len, 50257));
  write("c.bin", random_ids(3, 50257));
  EXPECT_THAT(open(path("a.bin")).warnings(), IsEmpty());
  EXPECT_THAT(open(path("*.bin")).warnings(),
              ElementsAre(path("b.bin") +
                          " with 16 tokens and 1 more file are shorter than a window of 17 tokens and "
                          "never read"));
}

TEST_F(TokenContent, PatternsLeaveOutWhatMylosWrites) {
  write("t_train_000001.bin", random_ids(100, 257));
  write_sidecar(path("t_train_000001.bin"), {.tokenizer = {.name = "bytes", .ranks = ""},
                                             .vocab = 257,
                                             .tokens = 100,
                                             .content = "",
                                             .documents = 1});
  spill(path("t_tokenize.json"), "{\"done\": true, \"settings\": {\"--shard-tokens\": \"5\"}}");
  spill(path("t_train_000002.bin.tmp"), std::string(1024, '\0') + "A\0"s);
  spill(path("t.lock"), "process 12 on host\n");
  fs::create_directory(path("trun"));
  spill(path("trun/resolved.deck"), "");
  spill(path("trun/status.json"), "{}");
  std::vector<std::string> left_out;
  const DataSource source = parse_sources(path("t*")).front();
  const std::vector<DataFile> files = files_of(source, &left_out);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].path, path("t_train_000001.bin"));
  EXPECT_THAT(left_out, ElementsAre(path("t*") +
                                    ": left out: 1 lock file, 1 progress file, 1 run directory, 1 sidecar, "
                                    "1 unfinished file"));
  EXPECT_EQ(open(path("*"), 257).warnings(),
            std::vector<std::string>{path("*") + left_out[0].substr(path("t*").size())});
  spill(path("t.txt"), "a text of more than thirty-two bytes, as prose is.\n");
  EXPECT_THAT(error(path("t*"), 257), HasSubstr(path("t.txt") + ": offset 0: a text"))
      << "a user's file is not left out";
  EXPECT_THAT(error(path("*.json"), 257), StartsWith("2 " + path("*.json") + " matches no file"));
}

class RepeatedFiles : public TokenContent {
 protected:
  RepeatedFiles() {
    write("a.bin", random_ids(9000, 50257, 1));
    write("b.bin", random_ids(9000, 50257, 2));
    write("v.bin", random_ids(9000, 50257, 3));
  }
  std::vector<std::string> repeated(const std::string& train, const std::string& valid = "") const {
    std::optional<TokenDataset> data;
    if (!valid.empty()) data.emplace(open(valid));
    const TokenDataset training = open(train);
    return repeated_files(&training, data ? &*data : nullptr);
  }
};

TEST_F(RepeatedFiles, AreNamed) {
  EXPECT_THAT(repeated(path("a.bin") + "," + path("b.bin"), path("v.bin")), IsEmpty());
  EXPECT_THAT(repeated(path("*.bin"), path("v.bin")),
              ElementsAre(path("v.bin") + " is both training and validation data"));
  EXPECT_THAT(repeated(path("a.bin") + "," + path("[a]*")),
              ElementsAre(path("a.bin") + " counts twice in the training data"));
  EXPECT_THAT(repeated(path("a.bin"), path("v.bin") + "," + path("v*")),
              ElementsAre(path("v.bin") + " counts twice in the validation data"));
}

TEST_F(RepeatedFiles, AreFoundByIdentityAndByContent) {
  fs::create_symlink("v.bin", path("linked"));
  fs::create_hard_link(path("v.bin"), path("hard"));
  for (const char* name : {"linked", "hard"}) {
    EXPECT_THAT(repeated(path(name), path("v.bin")),
                ElementsAre(path("v.bin") + " is both training and validation data: it is the same file as " +
                            path(name)));
  }
  fs::copy(path("v.bin"), path("copy"));
  spill_ids("nanogpt", random_ids(9000, 50257, 3));
  for (const std::string& name : {path("copy"), "nanogpt=" + path("nanogpt")}) {
    EXPECT_THAT(repeated(path("a.bin") + "," + name, path("v.bin")),
                ElementsAre(StartsWith(path("v.bin") + " is both training and validation data: ")));
  }
  Ids middle = random_ids(9000, 50257, 3);
  ++middle[4500];  // neither in the first nor in the last page
  write("changed", middle);
  EXPECT_THAT(repeated(path("changed"), path("v.bin")), IsEmpty());
}

TEST_F(RepeatedFiles, AreCountedIfTheyAreMany) {
  std::string train;
  for (int i = 0; i < 20; ++i) train += (train.empty() ? "" : ",") + path("a.bin");
  const std::vector<std::string> lines = repeated(train);
  ASSERT_EQ(lines.size(), 8U);
  EXPECT_THAT(lines.back(), HasSubstr("and 11 more"));
}

TEST_F(TokenContent, MergeRanksAreKnownByTheirContent) {
  const auto read = [](const std::string& file) -> std::string {
    try {
      BpeRanks::read(file);
      return "none";
    } catch (const Error& error) {
      return error.what();
    }
  };
  spill(path("gzip.tiktoken"), "\x1f\x8b\x08\0"s);
  EXPECT_THAT(read(path("gzip.tiktoken")), HasSubstr("is gzip data, not merge ranks"));
  write("tokens.bin", random_ids(100, 257));
  EXPECT_THAT(read(path("tokens.bin")), HasSubstr("is a token file, not merge ranks"));
  spill(path("tokenizer.json"), "{\"model\": {\"merges\": []}}");
  EXPECT_THAT(read(path("tokenizer.json")), HasSubstr("tokenizer.json of Hugging Face; name the vocab.json"));
  // Each of the two files names the pair, whatever its extension.
  spill(path("merges.txt"), "#version: 0.2\na b c\n");
  spill(path("vocab.json"), "{\"a\": 64}");
  fs::copy(path("vocab.json"), path("vocab"));
  for (const char* name : {"merges.txt", "vocab.json", "vocab"})
    EXPECT_THAT(read(path(name)), StartsWith(path("merges.txt") + ":2: a line is two tokens")) << name;
}

}  // namespace
}  // namespace mylos::test
