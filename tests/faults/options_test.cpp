// SPDX-License-Identifier: BSD-3-Clause
// Options and streams as people use them: every documented option, decks and prompts from pipes, paths that
// begin with ~ or a variable, commands from another folder, requests that change nothing, output that cannot
// be written.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/file_util.hpp"
#include "tests/faults/run_fixture.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Runs a command line of the shell, in which $MYLOS is the executable; there is no launcher.
Outcome shell(const std::string& command) {
  const std::string words = fmt::format("exec 2>&1; MYLOS='{}/bin/mylos'; export OMP_NUM_THREADS=1; {}",
                                        std::getenv("MYLOS_BUILD"), command);
  std::FILE* pipe = ::popen(words.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> part{};
  for (std::size_t n = 0; (n = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    outcome.output.append(part.data(), n);
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return outcome;
}

class Options : public RunTest {
 protected:
  std::string valid() const { return "--data.valid=" + tokens().string(); }
  Outcome alone(const Words& words) const { return run_mylos(words, {.ranks = 1}); }
  Outcome trained(const std::string& run, const Words& more = {}) const {
    Words words = {"--train.steps=2", valid()};
    words.insert(words.end(), more.begin(), more.end());
    return train(run, words, {.ranks = 1});
  }
  /// Shell words that run in a new folder of this name.
  std::string from(const std::string& folder, const std::string& command) const {
    fs::create_directories(scratch() / folder);
    return fmt::format("cd '{}' && {}", (scratch() / folder).string(), command);
  }
  void expect_code(const Outcome& outcome, ExitCode code, const std::string& text) const {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(code)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
  }
  /// Expects success, and that the output contains `text`.
  void expect_done(const Outcome& outcome, const std::string& text = "") const {
    expect_code(outcome, ExitCode::done, text);
  }
};

/// The options that `mylos help COMMAND` lists.
std::set<std::string> documented_options(const std::string& command) {
  const std::string text = shell("$MYLOS help " + command).output;
  const std::regex option("(^|\n)  --([a-z-]+)");
  std::set<std::string> names;
  for (std::sregex_iterator found(text.begin(), text.end(), option), end; found != end; ++found)
    names.insert((*found)[2]);
  return names;
}

/// A new option fails this test until it is used here.
TEST_F(Options, EachThatIsDocumentedWorks) {
  ASSERT_EQ(trained("run", {"--profile.step=2"}).exit_code, 0);
  spill(scratch() / "text.txt", "a text of some length, which is long enough to hold out a part of it");
  spill(scratch() / "lines.jsonl", "{\"body\": \"one\"}\n{\"body\": \"two\"}\n{\"body\": \"three\"}\n");
  spill(scratch() / "choices.jsonl", R"({"ctx": "the", "endings": ["fox", "dog"], "label": 0})");
  spill(scratch() / "prompts.jsonl", R"({"prompt": "the"})");
  const std::string run = run_path("run").string();
  const std::string step = checkpoint_path("run", 2).string();
  const std::string text = (scratch() / "text.txt").string();
  const std::string lines = (scratch() / "lines.jsonl").string();
  const std::string plugins = "--plugin-path=" + scratch().string();
  const auto at = [&](const char* name) { return (scratch() / name).string(); };
  const std::vector<Words> uses = {
      {"train", deck().string(), "--run.dir=" + run, "--restart=step_000002", "--train.steps=3",
       "--progress=none", plugins},
      {"train", deck().string(), "--print-dir"},
      {"train", deck().string(), "--dry-run", "--ranks=2", "--ranks-per-node=1", "--layout", "--schedule",
       "--pass-times=1,1,1", "--write-schedule=" + at("passes.csv")},
      {"measure", at("m.machine"), "--from=" + run, "--no-grid", deck().string(), "--steps=1", "--bytes=1024",
       "--run.dir=" + run, plugins},
      {"plan", deck().string(), "--machine=" + at("m.machine"), "--run.dir=" + run, "--ranks=1",
       "--ranks-per-node=1", "--layout", "--schedule", "--pass-times=1,1,1", "--trace=" + at("traces"),
       "--write-schedule=" + at("planned.csv"), plugins},
      {"plan", deck().string(), "--run.dir=" + run, "--json"},
      {"plan", deck().string(), "--run.dir=" + run, "--csv"},
      {"eval", run, "--data=" + tokens().string(), "--step=step_2", "--max-loss=100", "--stride=8",
       "--per-token=" + at("tokens.h5"), "--dtype=bf16", "--ranks=unused", plugins},
      {"eval", run, "--choices=" + at("choices.jsonl"), "--style=harness", "--limit=1",
       "--output=" + at("answers.jsonl")},
      {"generate", run, "--prompt=the ", "--tokens=1e1", "--temperature=+0.5", "--top-k=3", "--seed=7",
       "--step=2", "--ranks=unused", "--stop=one", "--stop=two", "--top-p=0.9", "--repetition-penalty=1.1",
       "--dtype=bf16", plugins},
      {"generate", run, "--prompts=" + at("prompts.jsonl"), "--samples=2", "--batch=3",
       "--output=" + at("texts.jsonl")},
      {"convert", run, at("model"), "--to=hf", "--dtype=bf16", "--step=2", "--ranks=unused", plugins},
      {"convert", at("model"), at("model.bin"), "--to=llmc"},
      {"tokenize", text, "--tokenizer=bytes", "--output=" + at("out.bin"), "--valid-output=" + at("held.bin"),
       "--valid-fraction=0.25", "--format=text", "--threads=1", plugins},
      {"tokenize", lines, "--output=" + at("shards"), "--shard-tokens=1e1", "--continue", "--format=jsonl",
       "--key=body", "--eot=begin", "--seed=3", "--valid-fraction=0.5"},
      {"inspect", step, "--verify", plugins},
      {"inspect", deck().string(), "--program", "--ranks=2", "--ranks-per-node=2", "--rank=1"},
      {"inspect", run, "--csv=steps"},
      {"report", run, "--output=" + at("report.html"), plugins},
      {"report", run, "--tensorboard", "--output=" + at("events")},
      {"help", "deck", "--markdown", plugins},
      {"version", plugins},
  };
  std::map<std::string, std::set<std::string>> used;
  for (Words words : uses) {
    words.emplace_back("--alone");
    for (const std::string& word : words) {
      if (word.starts_with("--")) used[words.front()].insert(word.substr(2, word.find('=') - 2));
    }
    const Outcome outcome = alone(words);
    EXPECT_EQ(outcome.exit_code, 0) << testing::PrintToString(words) << outcome.output;
  }
  const std::string usage = shell("$MYLOS help").output;
  const std::regex line("\n  mylos ([a-z]+) ");
  int commands = 0;
  for (std::sregex_iterator found(usage.begin(), usage.end(), line), end; found != end; ++found, ++commands) {
    const std::string command = (*found)[1];
    const std::set<std::string> documented = documented_options(command);
    EXPECT_TRUE(documented.contains("plugin-path")) << command;
    for (const std::string& option : documented)
      EXPECT_TRUE(used[command].contains(option))
          << "mylos " << command << " --" << option << " is not used in this test";
  }
  EXPECT_GE(commands, 11);
}

/// The user's value of what a command chooses by itself wins, in any order and on any number of ranks.
TEST_F(Options, EvalAndGenerateTakeTheirDeckParameters) {
  ASSERT_EQ(trained("run").exit_code, 0);
  const std::string run = run_path("run").string();
  const Words given = {"--backend.threads=2",        "--backend.compute=kokkos", "--backend.comm=mpi",
                       "--backend.graphs=false",     "--comm.timeout=99",        "--comm.heartbeat=88",
                       "--comm.start_timeout=77",    "--io.timeout=66",          "--comm.algorithm=ring",
                       "--comm.progress_thread=true"};
  for (const int ranks : {1, 2}) {
    Words words = {"eval", run};
    words.insert(words.end(), given.begin(), given.end());
    const Outcome outcome = run_mylos(words, {.ranks = ranks});
    expect_done(outcome, "step 2: loss ");
    EXPECT_THAT(outcome.output, Not(HasSubstr("given twice")));
    words[0] = "generate";
    words.emplace_back("--tokens=2");
    EXPECT_EQ(run_mylos(words, {.ranks = ranks}).exit_code, 0);
  }
  // That the value counts, and whose mistake a wrong one is.
  expect_code(run_mylos({"eval", run, "--backend.comm=self"}), ExitCode::usage,
              "comm = self is for one rank");
  expect_code(alone({"eval", run, "--backend.compute=none_such"}), ExitCode::usage,
              "no compute backend \"none_such\"");
  expect_code(alone({"eval", run, "--backend.threads=x"}), ExitCode::usage, "threads = x is not an integer");
  expect_code(alone({"eval", run, "--backend.threads=1", "--backend.threads=2"}), ExitCode::usage,
              "given twice: 1 and 2");
  expect_code(alone({"eval", run, "--comm.algoritm=ring"}), ExitCode::usage,
              "did you mean [comm] algorithm?");
  expect_code(alone({"eval", run, "--train.steps=3"}), ExitCode::usage,
              "only [backend], [comm], [io] and [parallel]");
}

TEST_F(Options, MistakesEndWithOneLine) {
  ASSERT_EQ(trained("run").exit_code, 0);
  const std::string run = run_path("run").string();
  const std::string step = checkpoint_path("run", 2).string();
  const std::pair<Words, const char*> cases[] = {
      {{"generate", run, "--temperature=nan"}, "--temperature=nan is not a finite number"},
      {{"inspect", deck().string(), "--program", "--ranks=2", "--rank=2"},
       "--rank=2 must be from 0 to 1, the last of 2 ranks"},
      {{"inspect", run, "--rank=0"}, "--rank, --ranks, --ranks-per-node and deck parameters are for inspect"},
      {{"generate", run, "--temperature=-1"}, "--temperature=-1 must be at least 0"},
      {{"generate", run, "--seed=-1"}, "--seed=-1 must be at least 0"},
      {{"generate", run, "--tokens=-1"}, "--tokens=-1 must be at least 0"},
      {{"eval", run, "--max-loss=nan"}, "--max-loss=nan is not a finite number"},
      {{"eval", run, "--data="}, "\"\" names no file"},
      {{"eval", run, "--data=" + (scratch() / "none.bin").string()}, "none.bin does not exist"},
      {{"eval", run, "--stride=0"}, "--stride=0 must be at least 1"},
      {{"eval", run, "--stride=17"}, "--stride=17 must be at most 16, the number of tokens of a window"},
      {{"eval", run, "--per-token="}, "--per-token is empty; name a file"},
      {{"eval", run, "--per-token=" + tokens().string()}, "train.bin is one of the inputs; name another"},
      {{"eval", run, "--per-token=" + run + "/metrics.h5"}, "metrics.h5 is a run's file; name another file"},
      {{"eval", run, "--step=3x"}, "--step=3x must be newest, a step N or step_N"},
      {{"eval", step, "--step=2"}, "--step is for a run directory, but"},
      {{"eval", run, "--prompt=x"}, "mylos eval has no option --prompt=x (mylos generate has it)"},
      {{"train", deck().string(), "--lr=1"}, "mylos train has no option --lr=1 (did you mean --optim.lr?)"},
      {{"train", deck().string(), "--restart=5x", "--dry-run"}, "--restart=5x must be"},
      {{"help", "trian"}, "no help for \"trian\"; did you mean train?"},
      {{"help", "plugins", "x"}, "unexpected argument x"},
      {{"help", "--markdown"}, "--markdown is for mylos help deck"},
      {{"trian"}, "unknown command \"trian\"; did you mean train?"},
  };
  for (const auto& [words, text] : cases) {
    const Outcome outcome = alone(words);
    expect_code(outcome, ExitCode::usage, text);
    EXPECT_EQ(occurrences(outcome.output, "\n"), 1) << outcome.output;
  }
  expect_done(shell("$MYLOS train -h"), "--dry-run");
  expect_done(shell("$MYLOS eval --help"), "--max-loss");
}

TEST_F(Options, VersionNeedsNoLauncher) {
  for (const char* words : {"--version", "-V", "version"}) {
    const Outcome outcome = shell(std::string("$MYLOS ") + words);
    expect_done(outcome);
    for (const char* text : {"mylos 0.", "\ncommit ", "\ncompiler ", "\nMPI ", "\nHDF5 ", "self: usable",
                             "mpi: not usable here: ", "kokkos, Kokkos "})
      EXPECT_THAT(outcome.output, HasSubstr(text)) << words;
  }
  const std::string backend = shell("$MYLOS help plugins").output;
  if (backend.find("onednn") != std::string::npos) {
    EXPECT_THAT(shell("$MYLOS -V").output, HasSubstr("onednn, oneDNN "));
  }
  expect_code(shell("$MYLOS version x"), ExitCode::usage, "unexpected argument x");
}

TEST_F(Options, AnEmptyVariableIsNotSet) {
  expect_done(shell(fmt::format("MYLOS_CPU= $MYLOS train '{}' --dry-run", deck().string())), "parameters");
}

using Streams = Options;

/// Writes `text` into a new pipe as soon as somebody reads it.
class Pipe {
 public:
  Pipe(fs::path path, std::string text) : path_(std::move(path)) {
    mkfifo(path_.c_str(), 0600);
    writer_ = std::jthread([this, text] { std::ofstream(path_) << text; });
  }
  /// A job that never reads would leave the writer waiting.
  ~Pipe() {
    const int reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK);
    writer_.join();
    ::close(reader);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

 private:
  fs::path path_;
  std::jthread writer_;
};

/// The deck is written once, so that a second reader would get nothing, or wait for ever.
TEST_F(Streams, ADeckFromAPipeIsReadOnceAndShared) {
  ASSERT_EQ(train("reference", {"--train.steps=2"}).exit_code, 0);
  const fs::path pipe = scratch() / "pipe";
  {
    const Pipe deck_in_pipe(pipe, slurp(deck()));
    const Outcome outcome = run_mylos({"train", pipe.string(), "--train.steps=2", "--progress=none",
                                       "--run.dir=" + run_path("run").string()});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  expect_same_run("run", "reference", 2);
  const std::string file = deck().string();
  for (const std::string words :
       {"$MYLOS train - --dry-run < ", "cat {} | $MYLOS train - --dry-run #",
        "cat {} | $MYLOS train /dev/stdin --dry-run #", "cat {} | $MYLOS inspect --program - #"}) {
    std::string command = words;
    if (const std::size_t place = command.find("{}"); place != std::string::npos)
      command.replace(place, 2, file);
    expect_done(shell(command + file), "rank");
  }
  expect_done(shell(fmt::format("bash -c '$0 train <(sed s/steps/steps/ {}) --dry-run' $MYLOS", file)),
              "ranks 1");
  expect_code(shell("$MYLOS train - --dry-run < /dev/null"), ExitCode::usage, "standard input is empty");
  expect_code(shell("$MYLOS train - --dry-run <&-"), ExitCode::io, "standard input");
}

/// Nothing is ever written to the pipe. It can be opened for writing once the job reads it, and signals are
/// then heard.
TEST_F(Streams, ASilentPipeLeavesSignalsHeard) {
  const fs::path pipe = scratch() / "pipe";
  mkfifo(pipe.c_str(), 0600);
  ASSERT_EQ(trained("run").exit_code, 0);
  const Words commands[] = {{"train", pipe.string()},
                            {"train", pipe.string(), "--dry-run"},
                            {"inspect", "--program", pipe.string()}};
  for (const Words& words : commands) {
    Job job(words, {.ranks = 1});
    FileDescriptor writer;
    job.wait_until([&] {
      writer = FileDescriptor(::open(pipe.c_str(), O_WRONLY | O_NONBLOCK));
      return static_cast<bool>(writer);
    });
    ::kill(job.rank(0), SIGTERM);
    expect_code(job.wait(), ExitCode::preempted, "stopped by a signal");
  }
}

TEST_F(Streams, WhatIsThereIsSaid) {
  fs::create_symlink("nowhere", scratch() / "link");
  fs::create_directory(scratch() / "folder");
  const auto at = [&](const char* name) { return (scratch() / name).string(); };
  expect_code(alone({"train", at("none.deck")}), ExitCode::usage, "none.deck does not exist");
  expect_code(alone({"train", at("link")}), ExitCode::usage,
              "there is a link to nowhere, which does not exist");
  expect_code(alone({"train", at("folder")}), ExitCode::usage, "there is a folder");
  for (const char* command : {"eval", "generate", "report", "inspect"}) {
    expect_code(alone({command, at("link")}), ExitCode::bad_data,
                "there is a link to nowhere, which does not exist");
    expect_code(alone({command, tokens().string() + "/x"}), ExitCode::bad_data, "train.bin is a file");
  }
  expect_code(alone({"eval", at("folder")}), ExitCode::bad_data, "there is a folder");
  expect_code(train("run", {"--data.valid=" + at("link")}, {.ranks = 1}), ExitCode::usage,
              "link is not a file that can be read: there is a link to nowhere, which does not exist");
}

TEST_F(Streams, APromptMayComeFromStandardInput) {
  ASSERT_EQ(trained("run").exit_code, 0);
  const std::string run = run_path("run").string();
  const Outcome given = alone({"generate", run, "--prompt=the quick", "--tokens=4"});
  expect_done(given, "the quick");
  const Outcome piped =
      shell(fmt::format("printf 'the quick' | $MYLOS generate '{}' --prompt - --tokens=4", run));
  EXPECT_EQ(piped.exit_code, 0);
  EXPECT_EQ(piped.output, given.output);
  expect_done(shell(fmt::format("printf 'a\\0\\377' | $MYLOS generate '{}' --prompt=- --tokens=1", run)),
              std::string("a\0\xff", 3));
  expect_done(alone({"generate", run, "--tokens=0", "--prompt=the"}), "--tokens=0 generates nothing");
}

TEST_F(Streams, OutputThatCannotBeWrittenIsAnError) {
  ASSERT_EQ(trained("run").exit_code, 0);
  const std::string run = run_path("run").string();
  for (const std::string& words :
       {std::string("--version"), std::string("help"), std::string("help deck"), "inspect " + run,
        "inspect --program " + deck().string(), "report " + run, "eval " + run, "generate --tokens=2 " + run,
        "train --dry-run " + deck().string()}) {
    for (const char* output : {" > /dev/full", " >&-"}) {
      const Outcome outcome = shell("$MYLOS " + words + output);
      EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::io))
          << words << output << ": " << outcome.output;
      EXPECT_EQ(occurrences(outcome.output, "\n"), 1) << outcome.output;
    }
    EXPECT_EQ(shell("$MYLOS " + words + " 2>&- > /dev/null").exit_code, 0) << words;
  }
}

using Places = Options;

/// A deck with relative paths, in the folder where a run is started.
std::string relative_deck(const std::string& absolute, const fs::path& folder) {
  std::string text = absolute;
  for (std::size_t place = 0; (place = text.find(folder.string() + "/")) != std::string::npos;)
    text.erase(place, folder.string().size() + 1);
  return text;
}

TEST_F(Places, ARunWorksFromAnotherFolder) {
  spill(scratch() / "relative.deck", relative_deck(slurp(deck()), scratch()));
  const std::string start =
      "$MYLOS train relative.deck --run.dir=run --data.valid=train.bin --train.stop_step=2 --train.steps=4 "
      "--progress=none";
  expect_done(shell(from(".", start)), "stopped at step 2");
  const std::string loss = shell(from(".", "$MYLOS eval run")).output;
  EXPECT_THAT(loss, AllOf(HasSubstr("step 2: loss "), Not(HasSubstr("where the run was started"))));
  for (const char* name : {"../run", "../run/checkpoints/step_000002"}) {
    const Outcome outcome = shell(from("elsewhere", std::string("$MYLOS eval ") + name));
    expect_done(outcome, "[data] valid = train.bin begins in ");
    EXPECT_THAT(outcome.output, HasSubstr(loss));
  }
  // The run's data are meant, even if there are others of that name.
  fs::create_directories(scratch() / "other");
  expect_done(shell(
      "printf 'other text, of one hundred characters or so, which is enough for some windows of 16 tokens "
      "each to be evaluated' | $MYLOS tokenize - --format=text --output='" +
      (scratch() / "other" / "train.bin").string() + "'"));
  EXPECT_THAT(shell(from("other", "$MYLOS eval ../run")).output, HasSubstr(loss));
  expect_done(shell(from("elsewhere", "$MYLOS generate ../run --tokens=1")));
  expect_done(shell(from("elsewhere", "$MYLOS report ../run")));
  expect_done(shell(from("elsewhere", "$MYLOS inspect ../run")));
  const std::string restart =
      "$MYLOS train ../run/resolved.deck --restart --progress=none --train.stop_step=";
  const Outcome first = shell(from("elsewhere", restart + "3"));
  expect_done(first, "where the run was started");
  EXPECT_THAT(first.output, HasSubstr("continuing at step 2"));
  expect_done(shell(from("third", restart + "0")), "done at step 4");
  EXPECT_TRUE(fs::is_empty(scratch() / "elsewhere"));
  expect_done(shell(from("third", "$MYLOS eval ../run")), "step 4: loss ");
}

TEST_F(Places, WhenDataAreGoneBothPlacesAreNamed) {
  fs::copy_file(tokens(), scratch() / "valid.bin");
  spill(scratch() / "relative.deck", relative_deck(slurp(deck()), scratch()));
  expect_done(
      shell(from(".", "$MYLOS train relative.deck --run.dir=run --data.valid=valid.bin --train.steps=2")));
  fs::remove(scratch() / "valid.bin");
  const Outcome outcome = shell(from("elsewhere", "$MYLOS eval ../run"));
  expect_code(outcome, ExitCode::usage, "valid.bin does not exist, neither here nor in ");
  EXPECT_THAT(outcome.output, HasSubstr("name the files with --data"));
}

TEST_F(Places, HomeAndVariablesBeginPaths) {
  const std::string set =
      fmt::format("export HOME='{}' PLACE='{}'; ", scratch().string(), scratch().string());
  const std::string start = fmt::format(
      "$MYLOS train '{}' '--run.dir=~/run' '--data.train=$PLACE/train.bin' '--data.valid=${{PLACE}}/t*.bin' "
      "'--checkpoint.dir=$PLACE/saved' --train.steps=2 --progress=none",
      deck().string());
  expect_done(shell(set + from("elsewhere", start)), "done at step 2");
  EXPECT_TRUE(fs::is_empty(scratch() / "elsewhere"));
  EXPECT_TRUE(fs::exists(scratch() / "saved" / "step_000002"));
  const std::string resolved = slurp(run_path("run") / "resolved.deck");
  for (const char* written : {"dir = \"~/run\"", "dir = \"$PLACE/saved\"", "train = \"$PLACE/train.bin\""})
    EXPECT_THAT(resolved, HasSubstr(written));
  const std::string more =
      start.substr(0, start.find("--train.steps")) + "--train.steps=3 --restart --progress=none";
  expect_done(shell(set + from("elsewhere", more)), "done at step 3");
  const std::string run = run_path("run").string();
  expect_done(shell(set + "$MYLOS eval '" + run + "'"), "step 3: loss ");
  expect_done(shell(set + "$MYLOS report '" + run + "' '--output=~/here.html'"));
  EXPECT_TRUE(fs::exists(scratch() / "here.html"));
  // Without the variable, only what needs it fails.
  expect_code(shell("unset PLACE; $MYLOS eval '" + run + "'"), ExitCode::usage,
              "the variable PLACE is not set");
  expect_done(shell(fmt::format("unset PLACE; $MYLOS eval '{}' --data='{}'", run, tokens().string())),
              "step 3: loss ");
  expect_done(shell("unset PLACE; $MYLOS generate '" + run + "' --tokens=1"));
  expect_code(shell("unset PLACE; " + start), ExitCode::usage,
              "[data] train = $PLACE/train.bin: the variable PLACE is not set");
}

using Idle = Options;

TEST_F(Idle, RequestsThatChangeNothingSaySo) {
  ASSERT_EQ(trained("run").exit_code, 0);
  expect_done(trained("run", {"--restart"}),
              "done at step 2: nothing was trained, since the run had reached [train] steps = 2");
  EXPECT_THAT(expect_status("run", "done", ExitCode::done), HasSubstr("nothing was trained"));
  expect_code(train("run", {"--restart", "--train.steps=1", "--optim.warmup=0"}, {.ranks = 1}),
              ExitCode::usage, "the checkpoint of step 2 is beyond [train] steps = 1");
  EXPECT_THAT(checkpoint_steps("run"), testing::ElementsAre(2)) << "nothing was moved away";
  const Outcome one =
      train("one", {"--train.steps=1", "--optim.warmup=0", valid(), "--checkpoint.every=3", "--eval.every=2"},
            {.ranks = 1});
  expect_done(one, "warning: the learning rate is 0 in all steps that remain, 1 to 1");
  EXPECT_THAT(one.output, HasSubstr("warning: [checkpoint] every = 3 is more than [train] steps = 1"));
  EXPECT_THAT(one.output, HasSubstr("warning: [eval] every = 2 is more than [train] steps = 1"));
  const Outcome plain = trained("plain", {"--checkpoint.every=2", "--eval.every=2"});
  EXPECT_THAT(plain.output, AllOf(Not(HasSubstr("warning: [")), Not(HasSubstr("learning rate is 0"))));
  expect_done(
      shell(fmt::format("$MYLOS train '{}' --dry-run --train.steps=5 --profile.step=3 --train.stop_step=2",
                        deck().string())),
      "warning: [profile] step = 3 is after [train] stop_step = 2");
  const std::string one_run = run_path("one").string();
  expect_done(alone({"generate", one_run, "--ranks=none", "--tokens=1"}), "--ranks is not used");
  expect_done(alone({"inspect", one_run, "--verify"}), "verified: every digest matches");
  spill(checkpoint_path("one", 1) / "state.json", "{}");
  expect_code(alone({"inspect", one_run, "--verify"}), ExitCode::bad_data, "state.json");
  expect_code(alone({"inspect", deck().string(), "--verify"}), ExitCode::usage, "there is a file");
  const std::string report = "$MYLOS report '" + run_path("one").string() + "'";
  expect_done(shell(report), "report.html: unchanged\n");
  EXPECT_THAT(shell(report + " --output='" + (scratch() / "new.html").string() + "'").output,
              Not(HasSubstr("unchanged")));
}

/// A model that has diverged may have a perplexity of hundreds of digits.
TEST_F(Idle, NumbersOfADivergedModelStayShort) {
  const Outcome outcome = train("run",
                                {"--train.steps=8", valid(), "--optim.lr=3", "--optim.warmup=0",
                                 "--optim.clip_norm=0", "--optim.schedule=constant"},
                                {.ranks = 1});
  for (const std::string& text : {outcome.output, alone({"eval", run_path("run").string()}).output}) {
    EXPECT_TRUE(std::regex_search(text, std::regex("perplexity [0-9.]+e[+][0-9]+( \\(|, bits)"))) << text;
    EXPECT_FALSE(std::regex_search(text, std::regex("[0-9]{12}"))) << text;
  }
}

}  // namespace
}  // namespace mylos::test
