// SPDX-License-Identifier: BSD-3-Clause
// What users name is recognised, what was guessed is said, and data that is hardly meant gets a warning: as a
// user sees it.
#include <fcntl.h>
#include <sys/file.h>

#include <gmock/gmock.h>

#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_file.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using std::string_literals::operator""s;

class DataGuesses : public RunTest {
 protected:
  std::string file(const std::string& name) const { return (scratch() / name).string(); }

  static Outcome alone(const Words& words, const JobOptions& options = {.ranks = 1}) {
    return run_mylos(words, options);
  }
  /// mylos with the file `input` as its standard input.
  Outcome fed(const Words& words, const std::string& input) const {
    return alone(words, {.ranks = 1, .wrapper = {"sh", "-c", "\"$@\" <" + file(input), "sh"}});
  }
  /// The end of the plan: what it says of files.
  std::string found_by_dry_run(const Words& more = {}) const {
    Words words = train_arguments("run", more);
    words.emplace_back("--dry-run");
    const Outcome outcome = alone(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    const std::size_t last = outcome.output.find("checkpoint   ");
    return last == std::string::npos ? "no plan" : outcome.output.substr(outcome.output.find('\n', last) + 1);
  }
  static std::int64_t documents(const fs::path& token_file) { return read_sidecar(token_file)->documents; }
};

TEST_F(DataGuesses, StandardInputIsRecognised) {
  const Words words = {"tokenize", "-", "--output=" + file("out.bin")};
  spill(scratch() / "lines", "{\"text\": \"a\"}\n{\"text\": \"b\", \"x\": [NaN, -Infinity]}\n");
  Outcome outcome = fed(words, "lines");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("read as")));
  EXPECT_EQ(documents(file("out.bin")), 2);
  spill(scratch() / "text", "a text\nof two lines");
  outcome = fed(words, "text");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("standard input is read as one text; --format jsonl"));
  EXPECT_EQ(documents(file("out.bin")), 1);
  spill(scratch() / "gz", "\x1f\x8b\x08\0"s);
  outcome = fed(words, "gz");
  EXPECT_EQ(outcome.exit_code, 65) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("standard input is gzip data, not a text in UTF-8: zcat FILE | mylos tokenize -"));
  Words held_out = words;
  held_out.push_back("--valid-output=" + file("valid.bin"));
  outcome = fed(held_out, "text");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the end of standard input is not known in advance"));
}

TEST_F(DataGuesses, BytesThatAreNotUtf8AreCounted) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "caf\u00e9 \u4e00 \U0001f600 ";  // several blocks
  spill(scratch() / "good.txt", text);
  spill(scratch() / "latin1.txt", text + "caf\xe9 " + text + "na\xefve\0"s);
  for (const char* threads : {"--threads=1", "--threads=3"}) {
    const Words words = {"tokenize", file("good.txt"), "--output=" + file("out.bin"), threads};
    Outcome outcome = alone(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, Not(HasSubstr("warning")));
    Words both = words;
    both.push_back(file("latin1.txt"));
    outcome = alone(both);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output,
                HasSubstr(fmt::format("warning: 3 bytes of 1 file are NUL or not UTF-8, the first at "
                                      "{}: offset {};",
                                      file("latin1.txt"), text.size() + 3)));
  }
}

TEST_F(DataGuesses, TrainingSaysWhatItHardlyMeans) {
  fs::copy(tokens(), scratch() / "copy.bin");
  const Outcome outcome = train("run", {"--data.valid=" + file("copy.bin"), "--train.stop_step=1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "warning: " + file("copy.bin") +
                                            " is both training and validation data: " + tokens().string() +
                                            " has the same content"),
            1)
      << outcome.output;
}

TEST_F(DataGuesses, ADryRunEndsWithWhatItFinds) {
  const std::string num_tokens = std::to_string(TokenFile(tokens()).size());
  std::string found = found_by_dry_run();
  EXPECT_THAT(found, HasSubstr(tokens().string() + ": " + num_tokens + " tokens; 8 steps read "));
  EXPECT_THAT(found, HasSubstr(", new\n"));
  EXPECT_THAT(found, Not(HasSubstr("warning"))) << found;
  EXPECT_FALSE(fs::exists(run_path("run")));

  found = found_by_dry_run({"--data.train=" + file("none.bin"), "--data.valid=" + tokens().string()});
  EXPECT_THAT(found,
              HasSubstr("warning: --data.train: [data] train = " + file("none.bin") + " does not exist"));
  EXPECT_THAT(found, HasSubstr("valid data   " + num_tokens + " tokens in 1 file"));
  found = found_by_dry_run({"--data.valid=" + tokens().string()});
  EXPECT_THAT(found, HasSubstr("warning: " + tokens().string() + " is both training and validation data"));
  spill(scratch() / "text.bin", std::string(3000, 'a'));
  EXPECT_THAT(found_by_dry_run({"--data.train=" + file("text.bin")}),
              HasSubstr("text.bin: offset 0: a text"));
  fs::copy(tokens(), scratch() / "other.bin");
  write_sidecar(scratch() / "other.bin", {.tokenizer = {.name = "gpt2", .ranks = "0123"},
                                          .vocab = 50257,
                                          .tokens = TokenFile(tokens()).size(),
                                          .content = "",
                                          .documents = 1});
  EXPECT_THAT(found_by_dry_run({"--data.train=" + file("other.bin")}),
              HasSubstr("warning: [model] vocab = 257, but " + file("other.bin") + " holds tokens of gpt2"));

  EXPECT_THAT(found_by_dry_run({"--restart"}),
              HasSubstr("holds no checkpoint: with --restart the run begins at step 0"));
  ASSERT_EQ(train("run", {"--train.stop_step=2"}).exit_code, 0);
  EXPECT_THAT(found_by_dry_run(), HasSubstr("already holds a run; continue it with --restart"));
  EXPECT_THAT(found_by_dry_run({"--restart"}), Not(HasSubstr("warning")));
  const FileDescriptor lock = open_file(run_path("run") / "lock", O_RDWR);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  EXPECT_THAT(found_by_dry_run({"--restart"}),
              HasSubstr("warning: " + run_path("run").string() + " is in use by process "));
}

TEST_F(DataGuesses, OptionsThatCannotBeFollowedAreRefused) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}).exit_code, 0);
  const std::string checkpoint = checkpoint_path("run", 2).string();
  const std::pair<Words, const char*> cases[] = {
      {{"eval", checkpoint, "--step=2", "--data=" + tokens().string()}, "--step is for a run directory"},
      {{"train", deck().string(), "--dry-run", "--plugin-path=" + file("none")}, "--plugin-path: "},
      {{"generate", checkpoint, "--step=2"}, "--step is for a run directory"},
  };
  for (const auto& [words, problem] : cases) {
    const Outcome outcome = alone(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(problem));
  }
}

TEST_F(DataGuesses, InspectSaysWhatAFileIs) {
  spill(scratch() / "gz", "\x1f\x8b\x08\0"s);
  const std::pair<std::string, const char*> cases[] = {
      {file("gz"), "is gzip data, neither a run"},
      {deck().string(), "is a text (inspect --program shows what a deck runs), neither a run"},
  };
  for (const auto& [name, what] : cases) {
    const Outcome outcome = alone({"inspect", name});
    EXPECT_EQ(outcome.exit_code, 65) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(name + " " + what));
  }
}

}  // namespace
}  // namespace mylos::test
