// SPDX-License-Identifier: BSD-3-Clause
// Commands beside others that write the same names, or after them: tokenize, report and train. The first of
// two is held by a pipe that it reads.
#include <csignal>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>

#include <gmock/gmock.h>

#include "io/file_util.hpp"
#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_file.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class ConcurrentWriters : public RunTest {
 protected:
  ConcurrentWriters() {
    fs::create_directory(folder());
    spill(file("a.txt"), "the text of the second");
    if (::mkfifo(file("pipe").c_str(), 0600) == 0) writer_ = open_file(file("pipe"), O_RDWR);
  }

  fs::path folder() const { return scratch() / "folder"; }
  std::string file(const std::string& name) const { return (folder() / name).string(); }
  static Words tokenize(const Words& words) {
    Words all = {"tokenize"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  static Outcome run(const Words& words) { return run_mylos(tokenize(words), {.ranks = 1}); }
  static void expect(const Outcome& outcome, ExitCode code, const std::string& message = "") {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(code)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(message));
    EXPECT_THAT(outcome.output, Not(HasSubstr("filesystem error")));
  }
  void feed(const std::string& text) { write_output(file("pipe"), text); }
  /// Whether `process` has opened the pipe, so that it will read what is written now.
  bool has_pipe(pid_t process) const {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", process), error))
      if (fs::read_symlink(entry.path(), error) == file("pipe")) return true;
    return false;
  }
  /// Ends the pipe's input.
  void close_pipe() { writer_ = {}; }
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder())) found.insert(entry.path().filename());
    for (const char* own : {"a.txt", "pipe"}) found.erase(own);
    return found;
  }
  static std::string text_of(const fs::path& token_file) {
    const TokenFile opened(token_file);
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(opened.size()));
    opened.read(0, tokens);
    std::string text;
    for (const std::uint16_t token : tokens) text += token == 256 ? '|' : static_cast<char>(token);
    return text;
  }

 private:
  FileDescriptor writer_;
};

TEST_F(ConcurrentWriters, OfOneOutputTheSecondIsRefused) {
  fs::create_symlink("x.bin", file("link.bin"));
  fs::create_directory(file("below"));
  Job first(tokenize({file("pipe"), "--output=" + file("x.bin")}), {.ranks = 1});
  first.wait_until([&] { return has_pipe(first.rank(0)); });
  const std::string who = fmt::format("x.bin is being written by process {} on ", first.rank(0));
  for (const std::string name : {"x.bin", "link.bin", "below/../x.bin"})
    expect(run({file("a.txt"), "--output=" + file(name)}), ExitCode::usage, who);
  expect(run({file("a.txt"), "--output=" + file("y.bin"), "--valid-output=" + file("x.bin")}),
         ExitCode::usage, who);
  EXPECT_FALSE(fs::exists(file("y.bin")) || fs::exists(file("y.bin.lock")));
  expect(run({file("a.txt"), "--output=" + file("y.bin")}), ExitCode::done);
  feed("the text of the first");
  close_pipe();
  expect(first.wait(), ExitCode::done);
  EXPECT_EQ(text_of(file("x.bin")), "the text of the first|");
  EXPECT_EQ(read_sidecar(file("x.bin"))->tokens, 22);
  EXPECT_EQ(text_of(file("y.bin")), "the text of the second|");
  EXPECT_EQ(names(),
            (std::set<std::string>{"below", "link.bin", "x.bin", "x.bin.json", "y.bin", "y.bin.json"}));
}

TEST_F(ConcurrentWriters, OfOnePrefixTheSecondIsRefused) {
  const Words shards = {"--output=" + file("x"), "--shard-tokens=5"};
  Job first(tokenize({file("pipe"), shards[0], shards[1]}), {.ranks = 1});
  first.wait_until([&] { return has_pipe(first.rank(0)); });
  expect(run({file("a.txt"), shards[0], shards[1]}), ExitCode::usage, "x is being written by process");
  expect(run({file("a.txt"), shards[0], shards[1], "--continue"}), ExitCode::usage,
         "x is being written by process");
  feed("abcdef");
  close_pipe();
  expect(first.wait(), ExitCode::done);
  EXPECT_EQ(text_of(file("x_train_000001.bin")) + text_of(file("x_train_000002.bin")), "abcdef|");
  EXPECT_FALSE(fs::exists(file("x.lock")));
}

TEST_F(ConcurrentWriters, AKilledOneBlocksNobodyAndLeavesNothing) {
  Job first(tokenize({file("pipe"), "--format=jsonl", "--output=" + file("x.bin")}), {.ranks = 1});
  first.wait_until([&] { return has_pipe(first.rank(0)); });
  std::string lines;  // a whole block of lines, so that the token file is begun
  while (lines.size() < 300000) lines += "{\"text\": \"some text\"}\n";
  feed(lines);
  first.wait_until([&] { return fs::exists(file("x.bin.tmp")); });
  ::kill(first.rank(0), SIGKILL);
  EXPECT_NE(first.wait().exit_code, 0);
  EXPECT_FALSE(fs::exists(file("x.bin")));
  expect(run({file("a.txt"), "--output=" + file("x.bin")}), ExitCode::done);
  EXPECT_EQ(text_of(file("x.bin")), "the text of the second|");
  EXPECT_EQ(names(), (std::set<std::string>{"x.bin", "x.bin.json"}));
}

TEST_F(ConcurrentWriters, ASignalEndsTheWaitForSilentInput) {
  for (const bool has_writer : {true, false}) {
    if (!has_writer) close_pipe();
    Job job(tokenize({file("pipe"), "--output=" + file("x.bin")}), {.ranks = 1});
    job.wait_until([&] { return fs::exists(file("x.bin.json.lock")); });
    ::kill(job.rank(0), SIGTERM);
    expect(job.wait(), ExitCode::preempted, "stopped by a signal");
    EXPECT_TRUE(names().empty());
  }
  // Merge ranks are read from a pipe as well.
  Job job(tokenize({file("a.txt"), "--tokenizer=gpt2=" + file("pipe"), "--output=" + file("x.bin")}),
          {.ranks = 1});
  job.wait_until([&] { return fs::exists(file("x.bin.json.lock")); });
  ::kill(job.rank(0), SIGTERM);
  expect(job.wait(), ExitCode::preempted, "stopped by a signal");
}

TEST_F(ConcurrentWriters, ASignalEndsTheWaitForAReaderOfTheOutput) {
  const FileDescriptor full = open_file(file("pipe"), O_RDWR | O_NONBLOCK);
  while (::write(full.get(), "x", 1) == 1) {
  }
  const JobOptions unread = {.ranks = 1, .wrapper = {"bash", "-c", "exec \"$@\" >" + file("pipe"), "bash"}};
  Job tokenizing(tokenize({file("a.txt"), "--output=" + file("x.bin")}), unread);
  tokenizing.wait_until([&] { return fs::exists(file("x.bin.json")); });
  ::kill(tokenizing.rank(0), SIGTERM);
  expect(tokenizing.wait(), ExitCode::preempted, "stopped by a signal");
  EXPECT_EQ(names(), (std::set<std::string>{"x.bin", "x.bin.json"}));

  Job training(train_arguments("run", {"--train.steps=100000"}), unread);
  // It handles the signal from when it has its directory, and while it reads the deck before that.
  training.wait_until([&] { return fs::exists(run_path("run")) && handles(training.rank(0), SIGTERM); });
  ::kill(training.rank(0), SIGTERM);
  expect(training.wait(), ExitCode::preempted, "with a checkpoint");
}

TEST_F(ConcurrentWriters, StreamsAreReadByTheirNames) {
  const auto through = [&](const std::string& shell) {
    return JobOptions{.ranks = 1, .wrapper = {"bash", "-c", shell, "bash"}};
  };
  const std::string from = file("a.txt");
  for (const auto& [name, shell] : {std::pair{"/dev/stdin", "cat " + from + " | \"$@\""},
                                    std::pair{"/dev/fd/9", "\"$@\" 9< <(cat " + from + ")"},
                                    std::pair{"/dev/fd/9", "\"$@\" 9<" + from}}) {
    expect(run_mylos(tokenize({name, "--output=" + file("x.bin")}), through(shell)), ExitCode::done);
    EXPECT_EQ(text_of(file("x.bin")), "the text of the second|") << shell;
    fs::remove(file("x.bin"));
  }
  const Words from_pipe = {file("pipe"), "--output=" + file("y")};
  expect(run({from_pipe[0], from_pipe[1], "--format=text", "--valid-output=" + file("z")}), ExitCode::usage,
         "pipe is not known in advance");
  expect(run({from_pipe[0], from_pipe[1], "--shard-tokens=5", "--continue"}), ExitCode::usage,
         "pipe cannot be read twice");
}

TEST_F(ConcurrentWriters, AClosedStandardStreamIsNoFileOfTheCommand) {
  const auto without = [](const std::string& stream) {
    return JobOptions{.ranks = 1, .wrapper = {"bash", "-c", "exec \"$@\" " + stream, "bash"}};
  };
  expect(run_mylos(tokenize({"-", "--output=" + file("x.bin")}), without("<&-")), ExitCode::io,
         "cannot read standard input");
  expect(run_mylos(tokenize({file("a.txt"), "--output=" + file("x.bin")}), without(">&-")), ExitCode::io,
         "the output cannot be written");
  EXPECT_EQ(text_of(file("x.bin")), "the text of the second|");
  EXPECT_EQ(names(), (std::set<std::string>{"x.bin", "x.bin.json"}));
}

TEST_F(ConcurrentWriters, AFullDiskLeavesNothing) {
  spill(file("big.txt"), std::string(100000, 'x'));
  const JobOptions limited = {.ranks = 1, .wrapper = {"bash", "-c", "ulimit -f 50; exec \"$@\"", "bash"}};
  expect(run_mylos(tokenize({file("big.txt"), "--output=" + file("x.bin")}), limited), ExitCode::io,
         "cannot write");
  EXPECT_EQ(names(), (std::set<std::string>{"big.txt"}));
}

TEST_F(ConcurrentWriters, NoOutputReplacesAnInputOrAnotherOutput) {
  const auto expect_same = [&](const Words& words) {
    expect(run(words), ExitCode::usage, "are the same file");
  };
  for (const char* name : {"x.json", "x.tmp", "x.lock", "x.json.tmp"}) {
    spill(file(name), "a text");
    expect_same({file(name), "--output=" + file("x")});
    EXPECT_EQ(slurp(file(name)), "a text");
    fs::remove(file(name));
  }
  expect_same({file("a.txt"), "--output=" + file("x"), "--valid-output=" + file("x.json")});
  fs::create_symlink("a.txt", file("link"));
  expect_same({file("a.txt"), "--output=" + file("link")});
}

TEST_F(ConcurrentWriters, OutputsAreTriedBeforeTheInputIsRead) {
  fs::create_directory(file("folder"));
  fs::create_directory(file("x.json"));
  // The pipe is silent: reading it would not end.
  const auto refused = [&](const std::string& name, const std::string& message) {
    expect(run({file("pipe"), "--output=" + name}), ExitCode::io, message);
  };
  refused(file("folder"), "folder: there is a folder");
  refused(file("none/x"), "none does not exist");
  refused(file("x"), "x.json: there is a folder");
  fs::create_symlink("/dev/null", file("null"));
  refused(file("null"), "null: there is a link to /dev/null, a device");
  refused(file("pipe") + "/x", "pipe is a pipe");
  expect(run({file("pipe"), "--output=-"}), ExitCode::usage, "standard output");
  expect(run({file("pipe"), "--output="}), ExitCode::usage, "");
  EXPECT_TRUE(fs::is_symlink(file("null")));
}

TEST_F(ConcurrentWriters, ALinkKeepsItsTarget) {
  fs::create_directory(file("big"));
  fs::create_symlink("big/x.bin", file("x.bin"));
  spill(file("x.bin.json"), "of what the link's target was before");
  const Outcome outcome = run({file("a.txt"), "--output=" + file("x.bin")});
  expect(outcome, ExitCode::done, "removed " + file("x.bin.json"));
  EXPECT_TRUE(fs::is_symlink(file("x.bin")));
  EXPECT_EQ(text_of(file("big/x.bin")), "the text of the second|");
  EXPECT_EQ(read_sidecar(file("x.bin"))->tokens, 23);
}

TEST_F(ConcurrentWriters, WhatAnEarlierCallLeftIsRemovedAndSaid) {
  spill(file("one.jsonl"), "{\"text\": \"x\"}\n");
  const Words outputs = {"--output=" + file("x"), "--valid-output=" + file("y")};
  expect(run({file("a.txt"), outputs[0], outputs[1]}), ExitCode::done);
  ASSERT_TRUE(fs::exists(file("y")) && fs::exists(file("y.json")));
  const Outcome outcome = run({file("one.jsonl"), outputs[0], outputs[1]});
  expect(outcome, ExitCode::done, "removed " + file("y") + ",");
  EXPECT_THAT(outcome.output, HasSubstr("removed " + file("y.json") + ","));
  EXPECT_FALSE(fs::exists(file("y")) || fs::exists(file("y.json")));
  EXPECT_EQ(text_of(file("x")), "x|");

  // Shards of another run never stay among those of this one.
  const Words shards = {file("a.txt"), "--output=" + file("s"), "--shard-tokens=5"};
  const Words more = {shards[0], shards[1], shards[2], "--continue"};
  spill(file("s_train_000009.bin"), "another run's");
  expect(run(shards), ExitCode::usage, "already exist");
  expect(run(more), ExitCode::usage, "s_train_000009.bin is not of the run");
  fs::remove(file("s_train_000009.bin"));
  expect(run(more), ExitCode::done);
  expect(run(more), ExitCode::done, "all shards are complete");
  spill(file("s_val_000000.bin.json"), "another run's");
  expect(run(more), ExitCode::usage, "s_val_000000.bin.json is not of the run");
  fs::remove(file("s_val_000000.bin.json"));
  fs::remove(file("s_train_000002.bin"));
  expect(run(more), ExitCode::bad_data, "but there is nothing");
}

TEST_F(ConcurrentWriters, TwoReportsAreBothWhole) {
  ASSERT_EQ(train("run", {}, {.ranks = 1}).exit_code, 0);
  const auto report = [&](const Words& more, const JobOptions& options = {.ranks = 1}) {
    Words words = {"report", run_path("run").string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_mylos(words, options);
  };
  const std::string whole = slurp(run_path("run") / "report.html");
  {
    // Another process is writing the same file.
    const TemporaryFile other(run_path("run") / "report.html");
    expect(report({}), ExitCode::done);
  }
  EXPECT_EQ(slurp(run_path("run") / "report.html").size(), whole.size());
  EXPECT_FALSE(fs::exists(run_path("run") / "report.html.tmp"));
  const JobOptions piped = {.ranks = 1, .wrapper = {"bash", "-c", "\"$@\" | cat >" + file("out"), "bash"}};
  fs::create_symlink("/proc/self/fd/1", file("stdout"));  // like /dev/stdout, which a defect could replace
  expect(report({"--output=" + file("stdout")}, piped), ExitCode::done);
  EXPECT_TRUE(fs::is_symlink(file("stdout")));
  EXPECT_EQ(slurp(file("out")).size(), whole.size());
  for (const char* name : {"metrics.h5", "resolved.deck", "status.json"}) {
    const std::string before = slurp(run_path("run") / name);
    expect(report({"--output=" + (run_path("run") / name).string()}), ExitCode::usage,
           "is a file of the run");
    EXPECT_EQ(slurp(run_path("run") / name), before) << name;
  }
  expect(report({"--output=" + file("none/x.html")}), ExitCode::io, "none does not exist");
}

TEST_F(ConcurrentWriters, ARunHoldsNothingOfAnEarlierOne) {
  ASSERT_EQ(train("run", {"--profile.step=6", "--checkpoint.keep=9"}, {.ranks = 1}).exit_code, 0);
  ASSERT_TRUE(fs::exists(run_path("run") / "trace-6.json"));
  const Outcome restarted = train("run", {"--restart=step_4", "--train.stop_step=5"}, {.ranks = 1});
  expect(restarted, ExitCode::done, "trace-6.json.abandoned");
  EXPECT_FALSE(fs::exists(run_path("run") / "trace-6.json"));

  fs::remove(run_path("run") / "resolved.deck");
  fs::remove_all(run_path("run") / "checkpoints");
  const Outcome fresh = train("run", {"--train.stop_step=2"}, {.ranks = 1});
  expect(fresh, ExitCode::done, "metrics.h5, status.json, report.html");
  EXPECT_EQ(read_table("run", "launches").at("step").size(), 1U);
  expect_every_step_once("run", 2);
}

}  // namespace
}  // namespace mylos::test
