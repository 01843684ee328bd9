// SPDX-License-Identifier: BSD-3-Clause
// Inputs that hold nothing or are mylos' own, outputs within a run, and what cannot be computed, as a user
// sees them.
#include <sys/stat.h>

#include <gmock/gmock.h>

#include "io/tokens/sidecar.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

class NamedFiles : public RunTest {
 protected:
  std::string file(const std::string& name) const { return (scratch() / name).string(); }
  Outcome expect(const Words& words, ExitCode code, const std::string& message,
                 const Words& wrapper = {}) const {
    Outcome outcome = run_mylos(words, {.ranks = 1, .wrapper = wrapper});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(code)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(message));
    return outcome;
  }
};

TEST_F(NamedFiles, APipeOrFileWithoutAByteIsAnError) {
  const std::string output = "--output=" + file("out.bin");
  const Words silent = {"bash", "-c", "\"$@\" < /dev/null", "bash"};
  expect({"tokenize", "-", "--format=text", output}, ExitCode::bad_data, "standard input is empty", silent);
  expect({"tokenize", "/dev/stdin", output}, ExitCode::bad_data, "is empty",
         {"bash", "-c", "true | \"$@\"", "bash"});
  spill(scratch() / "empty.txt", "");
  spill(scratch() / "a.txt", "a text");
  expect({"tokenize", file("empty.txt"), output}, ExitCode::bad_data, "empty.txt is empty");
  EXPECT_FALSE(fs::exists(file("out.bin")));
  expect({"tokenize", file("empty.txt"), file("a.txt"), output}, ExitCode::done, "left out: 1 empty");
  EXPECT_EQ(read_sidecar(file("out.bin"))->documents, 1);
}

TEST_F(NamedFiles, RunsAndCheckpointsAreNoTexts) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  spill(scratch() / "a.txt", "a text");
  const std::string output = "--output=" + file("out.bin");
  expect({"tokenize", file("a.txt"), file("run"), output}, ExitCode::done, "left out: 1 run directory");
  expect({"tokenize", file("a.txt"), file("run/checkpoints"), output}, ExitCode::done,
         "left out: 1 folder of checkpoints");
  const std::string weights = (checkpoint_path("run", 2) / "weights.h5").string();
  expect({"inspect", weights}, ExitCode::bad_data, "is a file of a checkpoint: mylos inspect ");
  expect({"inspect", scratch().string()}, ExitCode::bad_data, "is neither a run nor a checkpoint");
}

TEST_F(NamedFiles, NoOutputReplacesAFileOfARun) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  const std::string run = run_path("run").string();
  const std::string weights = (checkpoint_path("run", 2) / "weights.h5").string();
  for (const std::string& output : {weights, run + "/lock", run + "/metrics.h5", run + "/metrics.h5.tmp"})
    expect({"report", run, "--output=" + output}, ExitCode::usage, "is a file of the run");
  spill(scratch() / "a.txt", "a text");
  for (const std::string& output : {weights, run + "/metrics.h5"})
    expect({"tokenize", file("a.txt"), "--output=" + output}, ExitCode::usage, "name another output");
  expect_loads("run", 2);
  EXPECT_EQ(num_rows("run"), 2U);
  for (int call = 0; call < 2; ++call)
    expect({"report", run, "--output=" + run + "/own.html"}, ExitCode::done, "");
  for (const char* end : {".lock", ".tmp"}) {
    expect({"tokenize", file("a.txt"), "--output=" + file("q"), "--valid-output=" + file("q") + end},
           ExitCode::usage, "are the same file");
  }
}

TEST_F(NamedFiles, ADryRunOfARestartReadsTheCheckpoint) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  const auto planned = [&](const Words& more, const std::string& message) {
    Words words = train_arguments("run", more);
    words.emplace_back("--dry-run");
    expect(words, ExitCode::done, message);
  };
  planned({"--restart"}, "restart      from step 2");
  planned({"--restart=step_7"}, "warning: ");
  planned({"--restart", "--model.width=64"}, "holds another model");
  planned({"--restart", "--train.stop_step=2"}, "nothing is left to train");
}

TEST_F(NamedFiles, ADivergedModelWritesNoText) {
  const Words diverging = {"--optim.name=sgd",     "--optim.lr=1000",        "--optim.warmup=0",
                           "--optim.clip_norm=0",  "--train.steps=30",       "--optim.schedule=constant",
                           "--checkpoint.every=0", "--guard.max_skips=1000", "--optim.weight_decay=0",
                           "--train.dtype=fp16"};
  ASSERT_EQ(train("run", diverging, {.ranks = 1}).exit_code, 0);
  expect({"generate", run_path("run").string(), "--prompt=a", "--tokens=3"}, ExitCode::numerical,
         "logits of token 1 are not finite");
}

TEST_F(NamedFiles, MoreThreadsThanKokkosHasAreRefused) {
  const Words environment = {"env", "OMP_NUM_THREADS=700"};
  Words words = train_arguments("run");
  expect(words, ExitCode::usage, "OMP_NUM_THREADS=700 must be at most 512", environment);
}

TEST_F(NamedFiles, AReportWithoutAReaderIsAnError) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  expect({"report", run_path("run").string(), "--output=" + file("pipe")}, ExitCode::io, "nobody reads it");
}

TEST_F(NamedFiles, AnEvaluationSaysWhatCountsTwiceAndWhatItCannotPrint) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  const std::string run = run_path("run").string();
  const std::string data = tokens().string();
  expect({"eval", run, "--data=" + data + "," + data}, ExitCode::done, "counts twice in the validation data");
  expect({"eval", run, "--data=" + data}, ExitCode::io, "the output cannot be written",
         {"bash", "-c", "\"$@\" > /dev/full", "bash"});
}

TEST_F(NamedFiles, APromptIsAText) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  expect({"generate", run_path("run").string(), "--prompt=-", "--tokens=1"}, ExitCode::bad_data,
         "standard input is gzip data", {"bash", "-c", "printf '\\x1f\\x8b\\x08' | \"$@\"", "bash"});
}

TEST_F(NamedFiles, TheLimitsAndVariablesOfOneRankAreNamed) {
  expect(train_arguments("run"), ExitCode::usage, "OMP_NUM_TEAMS=\"0\" must be", {"env", "OMP_NUM_TEAMS=0"});
  expect(train_arguments("run"), ExitCode::usage, "mylos: rank 3: the environment variable OMP_DYNAMIC",
         {"env", "PMI_RANK=3", "PMI_SIZE=4", "OMP_DYNAMIC=perhaps"});
}

TEST_F(NamedFiles, AStatusThatCannotBeWrittenIsNotTheOldOne) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  fs::create_directory(run_path("run") / "status.json.tmp");
  const Outcome outcome = train("run", {"--restart", "--train.stop_step=4"}, {.ranks = 1});
  EXPECT_THAT(outcome.output, HasSubstr("status.json was not written"));
  EXPECT_FALSE(fs::exists(run_path("run") / "status.json"));
}

}  // namespace
}  // namespace mylos::test
