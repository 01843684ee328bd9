// SPDX-License-Identifier: BSD-3-Clause
// A command that is complete exits with its own code although MPI_Finalize hangs, on one rank or on all.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

/// Of these jobs only the limit of MPI_Finalize itself can end one that hangs.
class Finalize : public RunTest {
 protected:
  static Words patient(Words words) {
    for (const char* limit : {"--comm.heartbeat=1e6", "--comm.timeout=1e6"}) words.emplace_back(limit);
    return words;
  }
  static JobOptions hanging(const std::string& rank) {
    return {.environment = {"LD_PRELOAD=" MYLOS_PRELOADED, "MYLOS_FAIL=:" + rank + ":MPI_Finalize:1:-1"}};
  }
  /// Expects that `ranks` ranks hung, and that the launcher had nothing to complain about.
  static void expect_ended(const Outcome& outcome, int ranks, int code) {
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, "failing call: MPI_Finalize"), ranks) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, "BAD TERMINATION"), 0) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, "proxy"), 0) << outcome.output;
  }
};

TEST_F(Finalize, ThatHangsDoesNotKeepACompleteRun) {
  Job first(train_arguments("first", patient({})), hanging("0"));
  Job second(train_arguments("second", patient({})), hanging("1"));
  Job both(train_arguments("both", patient({})), hanging("*"));
  expect_ended(first.wait(), 1, 0);
  expect_ended(second.wait(), 1, 0);
  expect_ended(both.wait(), 2, 0);
  for (const char* run : {"first", "second", "both"}) {
    EXPECT_EQ(expect_status(run, "done", ExitCode::done), "");
    expect_loads(run, 8);
    EXPECT_TRUE(fs::exists(run_path(run) / "report.html"));
  }
}

TEST_F(Finalize, ThatHangsDoesNotKeepAStoppedRun) {
  Job job(train_arguments("run", patient({"--train.steps=1000000", "--checkpoint.every=0"})), hanging("1"));
  job.wait_until([&] { return num_rows("run") >= 2; });
  ::kill(job.rank(0), SIGTERM);
  expect_ended(job.wait(), 1, static_cast<int>(ExitCode::preempted));
  expect_status("run", "preempted", ExitCode::preempted);
  expect_loads("run", status_step("run"));
}

TEST_F(Finalize, ThatHangsLeavesCodeAndOutputOfACommand) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}).exit_code, 0);
  const Words eval = patient({"eval", run_path("run").string(), "--data=" + tokens().string()});
  Words limited = eval;
  limited.emplace_back("--max-loss=0.5");
  const Words generate = patient({"generate", run_path("run").string(), "--prompt=the quick", "--tokens=2"});
  Job evaluates(eval, hanging("*"));
  Job judges(limited, hanging("0"));
  Job generates(generate, hanging("1"));
  const Outcome evaluated = evaluates.wait();
  expect_ended(evaluated, 2, 0);
  EXPECT_THAT(evaluated.output, HasSubstr("step 2: loss "));
  expect_ended(judges.wait(), 1, static_cast<int>(ExitCode::numerical));
  const Outcome generated = generates.wait();
  expect_ended(generated, 1, 0);
  EXPECT_THAT(generated.output, HasSubstr("the quick"));
}

/// An error on which all ranks agree.
TEST_F(Finalize, ThatHangsLeavesTheCodeOfAnError) {
  expect_ended(train("run", patient({"--data.train=missing"}), hanging("*")), 2,
               static_cast<int>(ExitCode::usage));
}

}  // namespace
}  // namespace mylos::test
