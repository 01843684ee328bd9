// SPDX-License-Identifier: BSD-3-Clause
// Deck, options and data must be the same on all ranks; a restart reports what changed. Also: data files that
// change during a run, and output that cannot be written.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sys/stat.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_dataset.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Identity : public RunTest {
 protected:
  /// Gives the arguments `first` to rank 0 and `second` to rank 1.
  static Outcome run_apart(const Words& command, const Words& first, const Words& second) {
    Words words = command;
    const Words others = {":", "-n", "1", fmt::format("{}/bin/mylos", std::getenv("MYLOS_BUILD"))};
    for (const Words& part : {first, others, command, second})
      words.insert(words.end(), part.begin(), part.end());
    return run_mylos(words, {.ranks = 1});
  }
  Outcome train_apart(const Words& first, const Words& second) const {
    return run_apart({"train", deck().string()}, first, second);
  }

  fs::path other_tokens(const std::string& name, std::uint16_t token) const {
    const fs::path file = scratch() / name;
    TokenFileWriter writer(file);
    writer.append(std::vector<std::uint16_t>(7300, token));
    writer.finish();
    return file;
  }
};

TEST_F(Identity, MustBeTheSameOnAllRanks) {
  const std::string other = other_tokens("other.bin", 1).string();
  const std::pair<std::string, std::string> cases[] = {
      {"--train.seed=1", "--train.seed=2"},
      {"--optim.lr=1e-3", "--optim.lr=2e-3"},
      {"--train.global_batch=12", "--train.global_batch=24"},
      {"--backend.comm=shm", "--backend.comm=mpi"},
      {"--run.dir=" + run_path("a").string(), "--run.dir=" + run_path("b").string()},
      {"--data.train=" + tokens().string(), "--data.train=" + other},
      {"--restart", "--restart=step_2"},
  };
  for (const auto& [first, second] : cases) {
    SCOPED_TRACE(first + " " + second);
    const Outcome outcome = train_apart({first}, {second});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, "this must be the same on all ranks"), 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("mylos: rank 1: "));
    EXPECT_FALSE(fs::exists(run_path("run")));
  }
  const Outcome lr = train_apart({"--optim.lr=1e-3"}, {"--optim.lr=2e-3"});
  EXPECT_THAT(lr.output, HasSubstr("optim.lr = 0.002, but rank 0 has optim.lr = 0.001"));
}

/// When the job ends is each rank's own matter, and no change of the run.
TEST_F(Identity, LeavesTheEndOfTheJobOut) {
  const std::string run = "--run.dir=" + run_path("run").string();
  const Outcome outcome = train_apart({run, "--train.stop_step=4", "--train.end_time=4000000000"},
                                      {run, "--train.stop_step=4", "--train.end_time=4000000001"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const Outcome rest = train_apart({run, "--restart", "--train.end_margin=3"}, {run, "--restart"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr(", bitwise"));
}

TEST_F(Identity, CoversEvaluatedData) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}).exit_code, 0);
  const std::string other = other_tokens("other.bin", 1).string();
  const Outcome outcome =
      run_apart({"eval", run_path("run").string()}, {"--data=" + tokens().string()}, {"--data=" + other});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "this must be the same on all ranks"), 1) << outcome.output;
}

TEST_F(Identity, OfDataDependsOnItsContent) {
  fs::copy_file(tokens(), scratch() / "copy.bin");
  const std::string copy = "--data.train=" + (scratch() / "copy.bin").string();
  EXPECT_EQ(train_apart({"--train.stop_step=4"}, {"--train.stop_step=4", copy}).exit_code, 0);

  const Outcome same = train("run", {"--restart", "--train.stop_step=6", copy});
  EXPECT_EQ(same.exit_code, 0) << same.output;
  EXPECT_THAT(same.output, HasSubstr(", bitwise"));

  fs::copy_file(other_tokens("other.bin", 1), scratch() / "copy.bin", fs::copy_options::overwrite_existing);
  const Outcome other = train("run", {"--restart", copy});
  EXPECT_EQ(other.exit_code, 0) << other.output;
  EXPECT_THAT(other.output, Not(HasSubstr(", bitwise")));
  EXPECT_THAT(other.output, HasSubstr("not bitwise, because of: content of data.train "));
  EXPECT_THAT(other.output,
              HasSubstr("content of data.train has changed: the samples of this run will not continue"));
}

/// Weighted sources of several files.
class SourcesOfARun : public RunTest {
 protected:
  SourcesOfARun() {
    for (const auto& [name, count] :
         {std::pair{"a_1.bin", 700}, std::pair{"a_2.bin", 300}, std::pair{"b.bin", 400}}) {
      std::vector<std::uint16_t> ids(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * i % 251);
      TokenFileWriter writer(scratch() / name);
      writer.append(ids);
      writer.finish();
    }
  }
  std::string sources(const std::string& weights = "2:1") const {
    const std::size_t colon = weights.find(':');
    return fmt::format("--data.train={}:{}, {}:{}", (scratch() / "a_*.bin").string(),
                       weights.substr(0, colon), (scratch() / "b.bin").string(), weights.substr(colon + 1));
  }
  void write_sidecar_of(const std::string& name, const TokenizerIdentity& tokenizer,
                        std::int64_t tokens) const {
    write_sidecar(scratch() / name,
                  {.tokenizer = tokenizer, .vocab = 257, .tokens = tokens, .content = "", .documents = 1});
  }
};

TEST_F(SourcesOfARun, AreContinuedAtAnyLayout) {
  const Outcome whole = train("whole", {sources()});
  EXPECT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_EQ(train("run", {sources(), "--train.stop_step=4"}).exit_code, 0);
  const Outcome same = train("run", {sources(), "--restart", "--train.stop_step=6"});
  EXPECT_THAT(same.output, HasSubstr(", bitwise"));
  EXPECT_EQ(train("run", {sources("4:2"), "--restart"}).exit_code, 0);
  expect_same_run("run", "whole", 8);
  // 96 samples of 16 tokens: 64 from 42 + 17 windows, 32 from 24.
  MetricsTable steps = steps_table("run");
  EXPECT_DOUBLE_EQ(steps["epochs_1"].back(), 64.0 / 59.0);
  EXPECT_DOUBLE_EQ(steps["epochs_2"].back(), 32.0 / 24.0);
  EXPECT_THAT(slurp(run_path("run") / "report.html"), HasSubstr("b.bin:2, 1.33 epochs"));

  EXPECT_EQ(train("other", {sources(), "--train.stop_step=4"}, {.ranks = 3}).exit_code, 0);
  EXPECT_EQ(train("other", {sources(), "--restart"}, {.ranks = 1}).exit_code, 0);
  const MetricsTable expected = steps_table("whole");
  const MetricsTable seen = steps_table("other");
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(seen.at("loss").at(i), expected.at("loss").at(i), 1e-4) << i;

  const Outcome weights = train("run", {sources("1:1"), "--restart", "--train.steps=10"});
  EXPECT_THAT(weights.output, HasSubstr("content of data.train has changed: the samples of this run"));
}

TEST_F(SourcesOfARun, MustUseOneTokenizer) {
  const auto expect_usage = [&](const Words& more, const std::string& problem) {
    const Outcome outcome = train("run", more);
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, problem), 1) << outcome.output;
  };
  write_sidecar_of("a_1.bin", {.name = "gpt2", .ranks = "12"}, 700);
  expect_usage({sources()}, "a_1.bin holds tokens of gpt2 (ranks 12), but [data] tokenizer = bytes");
  expect_usage({sources(), "--data.tokenizer=none", "--model.vocab=256"}, "[model] vocab = 256, but ");
  write_sidecar_of("b.bin", {.name = "bytes", .ranks = ""}, 400);
  expect_usage({sources(), "--data.tokenizer=none"}, "b.bin holds tokens of bytes, but ");
  EXPECT_FALSE(fs::exists(run_path("run")));

  fs::remove(scratch() / "b.bin.json");
  EXPECT_EQ(train("run", {sources(), "--data.tokenizer=none", "--train.stop_step=4"}).exit_code, 0);
  write_sidecar_of("a_1.bin", {.name = "gpt2", .ranks = "34"}, 700);
  expect_usage(
      {sources(), "--data.tokenizer=none", "--restart"},
      "the checkpoint of step 4 was trained on tokens of gpt2 (ranks 12), but the data are tokens of "
      "gpt2 (ranks 34)");
  fs::remove(scratch() / "a_1.bin.json");
  EXPECT_EQ(train("run", {sources(), "--data.tokenizer=none", "--restart"}).exit_code, 0);
}

TEST_F(SourcesOfARun, AreWatchedFileByFile) {
  for (const char* name : {"a_2.bin", "b.bin"}) {
    const std::string run = fmt::format("run_{}", name);
    const std::string whole = slurp(scratch() / name);
    Job job(train_arguments(run, {sources(), "--train.steps=1000000", "--checkpoint.every=0"}));
    job.wait_until([&] { return num_rows(run) > 0; });
    std::fstream(scratch() / name, std::ios::in | std::ios::out | std::ios::binary).seekp(1100)
        << std::string("\5\0\6", 4);
    EXPECT_NE(job.wait().exit_code, 0);
    EXPECT_THAT(expect_status(run, "failed", ExitCode::bad_data),
                HasSubstr((scratch() / name).string() + " has been changed since this run opened it"));
    spill(scratch() / name, whole);
  }
}

class ChangingData : public RunTest {
 protected:
  /// How a run ends if `change` is made while it trains.
  Outcome train_while(const std::function<void()>& change) {
    Job job(train_arguments("run", {"--train.steps=1000000", "--checkpoint.every=0"}));
    job.wait_until([&] { return num_rows("run") > 0; });
    change();
    return job.wait();
  }
};

TEST_F(ChangingData, ThatIsOverwrittenEndsTheRun) {
  constexpr std::size_t kept = 2000;
  const Outcome outcome = train_while([&] {
    // The file never becomes shorter.
    std::fstream file(tokens(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kept);
    // All ids lie in the vocabulary.
    for (std::size_t at = kept; at < fs::file_size(tokens()); at += 2) file << '\1' << '\0';
  });
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(expect_status("run", "failed", ExitCode::bad_data),
              HasSubstr(tokens().string() + " has been changed since this run opened it"));
}

TEST_F(ChangingData, ThatIsCutShortEndsTheRun) {
  const Outcome outcome = train_while([&] { fs::resize_file(tokens(), 3000); });
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(expect_status("run", "failed", ExitCode::io), HasSubstr("ends at offset 3000"));
}

TEST_F(ChangingData, ThatIsOnlyTouchedDoesNot) {
  Job job(train_arguments("run", {"--train.steps=1000000", "--checkpoint.every=0"}));
  job.wait_until([&] { return num_rows("run") > 0; });
  fs::last_write_time(tokens(), fs::file_time_type::clock::now());
  const std::size_t rows = num_rows("run");
  job.wait_until([&] { return num_rows("run") > rows + 3; });
  ::kill(job.rank(0), SIGTERM);
  EXPECT_EQ(job.wait().exit_code, static_cast<int>(ExitCode::preempted));
}

using Output = RunTest;

TEST_F(Output, MayBeLostByTraining) {
  const Outcome full =
      run_mylos(train_arguments("full", {}), {.wrapper = {"sh", "-c", R"(exec "$@" >/dev/full 2>&1)", "sh"}});
  EXPECT_EQ(full.exit_code, 0);
  expect_status("full", "done", ExitCode::done);
  const Outcome closed = run_mylos(
      train_arguments("closed", {}),
      {.ranks = 1,
       .wrapper = {"sh", "-c", R"("$@" | true; test -d $0)", checkpoint_path("closed", 8).string()}});
  EXPECT_EQ(closed.exit_code, 0) << closed.output;
}

TEST_F(Output, MayNotBeLostIfItIsTheProduct) {
  EXPECT_EQ(train("run").exit_code, 0);
  const std::string run = run_path("run").string();
  for (const Words& words :
       {Words{"help"}, Words{"inspect", run}, Words{"eval", run, "--data=" + tokens().string()},
        Words{"generate", run, "--tokens=3"}, Words{"train", deck().string(), "--dry-run"}}) {
    const Outcome outcome =
        run_mylos(words, {.ranks = 1, .wrapper = {"sh", "-c", R"(exec "$@" >/dev/full)", "sh"}});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::io)) << words.front() << "\n" << outcome.output;
    // A launcher may lose the code of a rank that aborts, so a single rank ends by itself.
    EXPECT_EQ(occurrences(outcome.output, "Abort("), 0) << outcome.output;
  }
}

TEST_F(Output, BeyondTheFileSizeLimitIsAnError) {
  const Outcome outcome =
      run_mylos(train_arguments("run", {}), {.ranks = 1,
                                             .environment = {"UCX_TLS=tcp,self"},
                                             .wrapper = {"sh", "-c", R"(ulimit -f 300; exec "$@")", "sh"}});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::io)) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("File too large"));
}

TEST_F(Output, OfTokenizeNeverReplacesItsInput) {
  const fs::path text = scratch() / "text.txt";
  spill(text, "a text that is not there twice");
  fs::create_symlink(text, scratch() / "link.txt");
  const std::string token_file = (scratch() / "out.bin").string();
  for (const Words& outputs :
       {Words{"--output=" + text.string()}, Words{"--output=" + (scratch() / "link.txt").string()},
        Words{"--output=" + token_file, "--valid-output=" + token_file}}) {
    Words words = {"tokenize", text.string()};
    words.insert(words.end(), outputs.begin(), outputs.end());
    const Outcome outcome = run_mylos(words, {.ranks = 1});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("are the same file"));
  }
  EXPECT_EQ(slurp(text), "a text that is not there twice");
  EXPECT_FALSE(fs::exists(token_file));
}

TEST_F(Output, NamesThatAreNotFilesAreRefused) {
  EXPECT_EQ(train("run").exit_code, 0);
  const fs::path pipe = scratch() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Outcome piped = run_mylos({"eval", run_path("run").string(), "--data=" + pipe.string()});
  EXPECT_EQ(piped.exit_code, static_cast<int>(ExitCode::bad_data)) << piped.output;
  EXPECT_THAT(piped.output, HasSubstr("is not a regular file"));
  const Outcome named = run_mylos({"train", std::string(5000, 'x')});
  EXPECT_EQ(named.exit_code, static_cast<int>(ExitCode::usage)) << named.output;
}

}  // namespace
}  // namespace mylos::test
