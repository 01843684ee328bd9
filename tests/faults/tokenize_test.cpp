// SPDX-License-Identifier: BSD-3-Clause
// mylos tokenize as a user calls it, and text from a run on GPT-2's tokens.
#include <csignal>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>

#include "io/json.hpp"
#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_file.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

class Tokenize : public RunTest {
 protected:
  std::string file(const std::string& name) const { return (scratch() / name).string(); }

  Outcome tokenize(const Words& words, const JobOptions& options = {.ranks = 1}) const {
    return run_mylos(arguments(words), options);
  }
  static Words arguments(const Words& words) {
    Words all = {"tokenize"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  void expect_refused(const Words& words, ExitCode code, const std::string& message) const {
    const Outcome outcome = tokenize(words);
    EXPECT_EQ(outcome.exit_code, static_cast<int>(code)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(message));
  }

  /// `count` documents as JSON lines.
  static std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += fmt::format("{{\"text\": \"document {} of many\"}}\n", i);
    return text;
  }

  static std::string text_of(const fs::path& token_file) {
    const TokenFile opened(token_file);
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(opened.size()));
    opened.read(0, tokens);
    std::string text;
    for (const std::uint16_t token : tokens) text += token == 256 ? '|' : static_cast<char>(token);
    return text;
  }
};

TEST_F(Tokenize, ReadsLinesFromStandardInput) {
  spill(scratch() / "in", "{\"body\": \"a\\u00e9\"}\n\n{\"body\": \"b\", \"n\": 1}");
  const JobOptions fed = {.ranks = 1, .wrapper = {"sh", "-c", "\"$@\" <" + file("in"), "sh"}};
  const Outcome outcome = tokenize({"-", "--key=body", "--output=" + file("out.bin"), "--eot=begin"}, fed);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(text_of(file("out.bin")), "|a\xc3\xa9|b");
  EXPECT_EQ(read_sidecar(file("out.bin"))->documents, 2);
  const Outcome text = tokenize({"-", "--format=text", "--output=" + file("out.bin")}, fed);
  ASSERT_EQ(text.exit_code, 0) << text.output;
  EXPECT_EQ(text_of(file("out.bin")), slurp(scratch() / "in") + "|");
  const Outcome bad = tokenize({"-", "--output=" + file("bad.bin")}, fed);
  EXPECT_EQ(bad.exit_code, static_cast<int>(ExitCode::bad_data));
  EXPECT_THAT(bad.output, HasSubstr("standard input:1: has no \"text\""));
  EXPECT_FALSE(fs::exists(file("bad.bin")));
}

TEST_F(Tokenize, RefusesInvalidArgumentsAndInput) {
  spill(scratch() / "a.jsonl", lines(3));
  spill(scratch() / "a.txt", "text");
  const std::string output = "--output=" + file("x.bin");
  const std::string input = file("a.jsonl");
  expect_refused({input}, ExitCode::usage, "needs --output");
  expect_refused({file("none"), output}, ExitCode::usage, "no file matches");
  expect_refused({input, output, "--eot=middle"}, ExitCode::usage, "--eot=middle");
  expect_refused({input, output, "--format=xml"}, ExitCode::usage, "--format=xml");
  expect_refused({input, output, "--threads=-1"}, ExitCode::usage, "--threads=-1");
  expect_refused({input, output, "--shard-tokens=0"}, ExitCode::usage, "--shard-tokens=0");
  expect_refused({input, output, "--valid-output=" + file("y"), "--valid-fraction=1"}, ExitCode::usage,
                 "between 0 and 1");
  expect_refused({input, output, "--continue"}, ExitCode::usage, "--continue needs --shard-tokens");
  expect_refused({"-", output, "--continue", "--shard-tokens=5"}, ExitCode::usage,
                 "standard input cannot be read twice");
  expect_refused({"-", output, "--format=text", "--valid-output=" + file("y")}, ExitCode::usage,
                 "is not known in advance");
  expect_refused({input, output, "--tokenizer=gpt2"}, ExitCode::usage, "gpt2=FILE");
  expect_refused({input, output, "--tokenizer=gpt2=" + file("a.txt")}, ExitCode::bad_data,
                 "a.txt:1: a line is base64");
  EXPECT_FALSE(fs::exists(file("x.bin")));
}

TEST_F(Tokenize, ContinuesShards) {
  spill(scratch() / "a.jsonl", lines(20000));
  const auto into = [&](const std::string& name, const Words& more = {}) {
    Words all = {file("a.jsonl"), "--shard-tokens=40000", "--valid-fraction=0.15", "--output=" + file(name)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Outcome whole = tokenize(into("whole"));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  // A directory in the place of a shard's temporary file stops a run.
  fs::create_directories(file("part_train_000004.bin.tmp/in_the_way"));
  expect_refused(into("part"), ExitCode::io, "part_train_000004.bin.tmp");
  fs::remove_all(file("part_train_000004.bin.tmp"));
  expect_refused(into("part"), ExitCode::usage, "continue them with --continue");
  expect_refused(into("part", {"--continue", "--seed=2"}), ExitCode::usage, "--seed = 1, not 2");
  const fs::file_time_type first = fs::last_write_time(file("part_train_000001.bin"));
  const Outcome rest = tokenize(into("part", {"--continue"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(fs::last_write_time(file("part_train_000001.bin")), first) << "it was there";
  int shards = 0;
  for (const auto& entry : fs::directory_iterator(scratch())) {
    const std::string name = entry.path().filename();
    EXPECT_NE(entry.path().extension(), ".tmp") << name;
    if (!name.starts_with("whole_train_") && !name.starts_with("whole_val_")) continue;
    const fs::path other = scratch() / ("part" + name.substr(std::string("whole").size()));
    EXPECT_EQ(slurp(entry.path()), slurp(other)) << name;
    ++shards;
  }
  EXPECT_GT(shards, 20) << "with their sidecars";
  EXPECT_TRUE(fs::exists(file("whole_train_000001.bin")));
  EXPECT_TRUE(fs::exists(file("whole_val_000000.bin")));
  EXPECT_THAT(tokenize(into("part", {"--continue"})).output, HasSubstr("all shards are complete"));
}

TEST_F(Tokenize, ASignalLeavesWholeShards) {
  spill(scratch() / "in", lines(1000));
  // An endless input.
  const JobOptions fed = {.ranks = 1,
                          .wrapper = {"sh", "-c", "while cat " + file("in") + "; do :; done | \"$@\"", "sh"}};
  Job job(arguments({"-", "--shard-tokens=40000", "--output=" + file("out")}), fed);
  job.wait_until([&] { return fs::exists(file("out_train_000002.bin")); });
  ::kill(job.rank(0), SIGTERM);
  const Outcome outcome = job.wait();
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::preempted)) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped by a signal"));
  for (const auto& entry : fs::directory_iterator(scratch()))
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  EXPECT_EQ(text_of(file("out_train_000001.bin")).substr(0, 32), "document 0 of many|document 1 of");
}

TEST_F(Tokenize, GeneratesTextFromARunOnGpt2Tokens) {
  const char* data = std::getenv("MYLOS_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "needs MYLOS_TEST_DATA";
  fs::copy_file(fs::path(data) / "gpt2.tiktoken", scratch() / "ranks.tiktoken");
  std::string text;
  for (int i = 0; i < 50; ++i) text += "The quick brown fox jumps over the lazy dog. ";
  spill(scratch() / "text", text);
  const Outcome made =
      tokenize({file("text"), "--tokenizer=gpt2=" + file("ranks.tiktoken"), "--output=" + file("gpt2.bin")});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  const Words keys = {"--data.train=" + file("gpt2.bin"), "--data.tokenizer=gpt2", "--model.vocab=50257",
                      "--data.ranks=" + file("ranks.tiktoken")};
  Words wrong = keys;
  wrong[1] = "--data.tokenizer=bytes";
  EXPECT_EQ(train("wrong", wrong).exit_code, static_cast<int>(ExitCode::usage));
  const Outcome trained = train("run", keys);
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  fs::remove(scratch() / "ranks.tiktoken");  // the run has its own copy
  const Words generate = {"--prompt=The quick brown", "--temperature=0", "--tokens=3"};
  for (const fs::path& place : {run_path("run"), checkpoint_path("run", 8)}) {
    Words words = {"generate", place.string()};
    words.insert(words.end(), generate.begin(), generate.end());
    const Outcome said = run_mylos(words, {.ranks = 1});
    EXPECT_EQ(said.exit_code, 0) << said.output;
    EXPECT_TRUE(said.output.starts_with("The quick brown")) << said.output;
  }
  fs::remove(run_path("run") / "gpt2.tiktoken");
  const Outcome lost = run_mylos({"generate", run_path("run").string()}, {.ranks = 1});
  EXPECT_EQ(lost.exit_code, static_cast<int>(ExitCode::usage)) << lost.output;
  EXPECT_THAT(lost.output, HasSubstr("--ranks=FILE"));
}

}  // namespace
}  // namespace mylos::test
