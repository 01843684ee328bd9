// SPDX-License-Identifier: BSD-3-Clause
// What can happen to a run between its checkpoints: errors, bad numbers, signals, stopped ranks, limits, and
// other jobs in its directory.
#include <algorithm>
#include <csignal>
#include <stdexcept>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/health/traffic.hpp"
#include "tests/faults/run_fixture.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// The options of communication and exchange of the runs of StepError and StoppedRank.
const RunTest::Words carriers[] = {
    {"--backend.comm=shm"},
    {"--backend.comm=mpi"},
    {"--backend.comm=mpi", "--comm.algorithm=ring", "--comm.progress_thread=true"},
    {"--backend.comm=shm", "--comm.ranks_per_node=1"},
    {"--backend.comm=mpi", "--parallel.exchange=zero3"}};

class StepError : public RunTest, public testing::WithParamInterface<RunTest::Words> {};

TEST_P(StepError, OfOneRankEndsAllAndNamesIt) {
  for (const char* phase : {"forward", "backward", "reduce", "step"}) {
    SCOPED_TRACE(phase);
    const Outcome outcome = train_with_fault(phase, fmt::format("{}:1:4:error", phase), GetParam());
    EXPECT_NE(outcome.exit_code, 0);
    const std::string message = expect_status(phase, "failed", ExitCode::internal);
    EXPECT_EQ(message, fmt::format("rank 1 failed at {} of step 4 (MYLOS_FAULT)", phase));
    EXPECT_THAT(outcome.output, HasSubstr(message));
    expect_loads(phase, 2);
  }
}

/// In `forward`, the other ranks wait in the next gather of weights, if weights are divided.
TEST_P(StepError, ADeadRankEndsAll) {
  for (const char* phase : {"forward", "reduce"}) {
    const Outcome outcome = train_with_fault(phase, fmt::format("{}:1:4:kill", phase), GetParam());
    EXPECT_NE(outcome.exit_code, 0);
    expect_loads(phase, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Carriers, StepError, testing::ValuesIn(carriers));

TEST(Harness, DoesNotFindARankOfAJobThatHasEnded) {
  Job job({"help"}, {.ranks = 1});
  EXPECT_EQ(job.wait().exit_code, 0);
  EXPECT_EQ(job.find_rank(0), std::nullopt);
  EXPECT_THROW(job.rank(0), std::runtime_error);
  EXPECT_THROW(job.wait_until([] { return false; }), std::runtime_error);
}

using Guard = RunTest;

/// On each layout, a bad value in the gradients of one rank, or in its part of them, reaches the decision of
/// all ranks.
class GuardedLayout : public RunTest,
                      public testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(GuardedLayout, LeavesTheStateAsItWas) {
  const auto& [layout, fault] = GetParam();
  EXPECT_EQ(train("before", {layout, "--checkpoint.every=0", "--train.stop_step=3"}).exit_code, 0);
  const Outcome outcome =
      train_with_fault("run", fault, {layout, "--checkpoint.every=0", "--train.stop_step=4"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step 4: update not applied"));
  EXPECT_THAT(steps_table("run")["skipped"], ElementsAre(0, 0, 0, 1));
  const Snapshot before = snapshot("before", 3);
  Snapshot after = snapshot("run", 4);
  EXPECT_THAT(after.position, HasSubstr(R"("skipped":1)"));
  after.position = before.position;
  expect_same_checkpoint(after, before);

  const Outcome rest = train("run", {layout, "--restart"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(steps_table("run")["skipped"], ElementsAre(0, 0, 0, 1, 0, 0, 0, 0));
}

INSTANTIATE_TEST_SUITE_P(Layouts, GuardedLayout,
                         testing::Values(std::pair("--parallel.exchange=ddp", "backward:1:4:nan"),
                                         std::pair("--parallel.exchange=zero2", "reduce:1:4:nan"),
                                         std::pair("--parallel.exchange=zero3", "reduce:1:4:nan"),
                                         std::pair("--parallel.tensor=2", "backward:1:4:nan")));

TEST_F(Guard, StopsIfThePolicySaysSoAndSavesNothing) {
  const Outcome outcome = train_with_fault("run", "reduce:1:4:nan", {"--guard.policy=stop"});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::numerical)) << outcome.output;
  EXPECT_THAT(expect_status("run", "failed", ExitCode::numerical), HasSubstr("step 4"));
  EXPECT_THAT(checkpoint_steps("run"), ElementsAre(2));
}

TEST_F(Guard, HalvesALossScaleThatOverflows) {
  const Outcome outcome =
      train("run", {"--train.dtype=fp16", "--train.loss_scale=16777216", "--guard.policy=stop"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("step 1: update not applied: a gradient overflowed; the loss scale is "
                        "now 8388608"));
  auto steps = steps_table("run");
  ASSERT_EQ(steps["skipped"].size(), 8U);
  EXPECT_EQ(steps["skipped"].front(), 1.0);
  EXPECT_EQ(steps["skipped"].back(), 0.0);
  double scale = 16777216.0;
  for (std::size_t i = 0; i < 8; ++i) {
    if (steps["skipped"][i] != 0.0) scale /= 2.0;
    EXPECT_EQ(steps["loss_scale"][i], scale) << "after step " << i + 1;
  }
}

TEST_F(Guard, TellsAnOverflowFromTheSpikeBeforeIt) {
  // Weights hardly change, and a norm above the average is a spike.
  const Words words = {"--train.dtype=fp16", "--optim.lr=1e-9", "--guard.spike_factor=1e-6",
                       "--guard.spike_window=2"};
  EXPECT_EQ(train("plain", words).exit_code, 0);
  const std::vector<double> skipped = steps_table("plain")["skipped"];
  const auto after_spike = std::ranges::find(skipped, 1.0) - skipped.begin() + 2;
  ASSERT_LE(after_spike, 8);
  const Outcome outcome = train_with_fault("run", fmt::format("reduce:0:{}:nan", after_spike), words);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr(fmt::format("step {}: update not applied: a gradient overflowed", after_spike)));
}

TEST_F(Guard, DecidesTheSameAfterARestart) {
  const Words words = {"--guard.spike_factor=8", "--guard.spike_window=4"};
  const Words until_5 = {words[0], words[1], "--train.stop_step=5"};
  const Words rest = {words[0], words[1], "--restart"};
  EXPECT_EQ(train_with_fault("whole", "reduce:0:7:spike", words).exit_code, 0);
  EXPECT_THAT(steps_table("whole")["skipped"], ElementsAre(0, 0, 0, 0, 0, 0, 1, 0));
  EXPECT_EQ(train_with_fault("parts", "reduce:0:7:spike", until_5).exit_code, 0);
  EXPECT_EQ(train_with_fault("parts", "reduce:0:7:spike", rest).exit_code, 0);
  expect_same_run("parts", "whole", 8);
}

TEST_F(Guard, NamesTheRankWhoseWeightsChanged) {
  const Outcome two =
      train_with_fault("two", "step:1:4:flip", {"--train.dtype=bf16", "--guard.replica_check_every=2"});
  EXPECT_NE(two.exit_code, 0);
  EXPECT_THAT(expect_status("two", "failed", ExitCode::numerical), HasSubstr("corrupted on rank 1"));
  EXPECT_THAT(checkpoint_steps("two"), ElementsAre(2));

  Job three(train_arguments("three", {"--guard.replica_check_every=2", "--checkpoint.every=0"}),
            {.ranks = 3, .environment = {"MYLOS_FAULT=step:2:4:flip"}});
  EXPECT_NE(three.wait().exit_code, 0);
  EXPECT_THAT(expect_status("three", "failed", ExitCode::numerical), HasSubstr("corrupted on rank 2"));

  Job groups(
      train_arguments("groups", {"--parallel.exchange=zero3", "--parallel.shard=2", "--train.dtype=bf16",
                                 "--guard.replica_check_every=2", "--checkpoint.every=0"}),
      {.ranks = 4, .environment = {"MYLOS_FAULT=step:3:4:flip"}});
  EXPECT_NE(groups.wait().exit_code, 0);
  EXPECT_THAT(expect_status("groups", "failed", ExitCode::numerical), HasSubstr("corrupted on rank 3"));

  const Outcome tensor =
      train_with_fault("tensor", "step:1:4:flip",
                       {"--train.dtype=bf16", "--parallel.tensor=2", "--guard.replica_check_every=2"});
  EXPECT_NE(tensor.exit_code, 0);
  EXPECT_THAT(expect_status("tensor", "failed", ExitCode::numerical), HasSubstr("corrupted on rank 1"));

  const Outcome no_master =
      train_with_fault("no_master", "step:1:4:flip",
                       {"--train.dtype=bf16", "--optim.master=none", "--guard.replica_check_every=2"});
  EXPECT_NE(no_master.exit_code, 0);
  EXPECT_THAT(expect_status("no_master", "failed", ExitCode::numerical),
              HasSubstr("corrupted on rank 0 or 1"));
}

class StopSignals : public RunTest {
 protected:
  /// Once the run trains, sends the signal `times` times to `rank`, or to the launcher if `rank` is -1.
  void expect_preempted(const std::string& run, int signal, int rank, int times) {
    SCOPED_TRACE(fmt::format("signal {} to {}, {} times", signal, rank, times));
    Job job(train_arguments(run, {"--train.steps=1000000", "--checkpoint.every=0"}));
    job.wait_until([&] { return occurrences(job.output(), "step ") > 0; });
    const pid_t process = rank < 0 ? job.launcher() : job.rank(rank);
    for (int i = 0; i < times; ++i) ::kill(process, signal);
    const Outcome outcome = job.wait();
    // A launcher that was signalled itself may exit with 0.
    EXPECT_TRUE(rank < 0 || outcome.exit_code == static_cast<int>(ExitCode::preempted)) << outcome.output;
    EXPECT_THAT(expect_status(run, "preempted", ExitCode::preempted),
                HasSubstr(fmt::format("signal {}", signal)));
    const std::int64_t step = status_step(run);
    expect_loads(run, step);
    expect_every_step_once(run, step);
  }
};

TEST_F(StopSignals, ToTheLauncherEndWithACheckpoint) {
  expect_preempted("term", SIGTERM, -1, 1);
  expect_preempted("usr1", SIGUSR1, -1, 1);
  expect_preempted("usr1_twice", SIGUSR1, -1, 2);
  expect_preempted("int", SIGINT, -1, 1);
}

TEST_F(StopSignals, ToOneRankEndWithACheckpoint) {
  expect_preempted("term", SIGTERM, 1, 1);
  expect_preempted("usr1", SIGUSR1, 0, 1);
  expect_preempted("xcpu", SIGXCPU, 0, 1);  // ulimit -t
  expect_preempted("usr1_twice", SIGUSR1, 1, 2);
  expect_preempted("term_twice", SIGTERM, 1, 2);
  expect_preempted("hup", SIGHUP, 0, 1);
  expect_preempted("int", SIGINT, 1, 1);
  const Outcome rest = train("int", {fmt::format("--train.steps={}", status_step("int") + 2), "--restart"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
}

using WallClock = RunTest;

TEST_F(WallClock, EndsTheRunWithACheckpointWhenItIsNear) {
  const Outcome near = train("near", {"--train.wall_clock=0.001"});  // reached before the first step
  EXPECT_EQ(near.exit_code, static_cast<int>(ExitCode::preempted)) << near.output;
  EXPECT_THAT(expect_status("near", "preempted", ExitCode::preempted), HasSubstr("wall-clock limit"));
  EXPECT_EQ(status_step("near"), 1);
  expect_loads("near", 1);
  EXPECT_EQ(train("far", {"--train.wall_clock=1e6"}).exit_code, 0);
}

using Metrics = RunTest;

TEST_F(Metrics, LoseNoStepIfAKillMeetsAnAppend) {
  constexpr std::int64_t steps = 1'000'000;
  for (const std::size_t more : {3, 8, 12}) {
    Job job(train_arguments("run",
                            {fmt::format("--train.steps={}", steps), "--checkpoint.every=25", "--restart"}));
    job.wait_until([&] { return occurrences(job.output(), ": wrote ") > 1; });
    const std::size_t rows = num_rows("run");
    job.wait_until([&] { return num_rows("run") >= rows + more; });
    ::kill(job.rank(0), SIGKILL);
    job.wait();
    EXPECT_TRUE(wait_until([&] { return job.processes().empty(); }));
    expect_every_step_once("run", static_cast<std::int64_t>(num_rows("run")));
  }
  const std::int64_t last = checkpoint_steps("run").back() + 3;
  const Outcome rest =
      train("run", {fmt::format("--train.steps={}", steps), fmt::format("--train.stop_step={}", last),
                    "--checkpoint.every=0", "--restart"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  expect_every_step_once("run", last);
}

class StoppedRank : public RunTest, public testing::WithParamInterface<RunTest::Words> {
 protected:
  void expect_report(const std::string& run, const Outcome& outcome) {
    EXPECT_NE(outcome.exit_code, 0);
    expect_status(run, "failed", ExitCode::watchdog);
    EXPECT_EQ(occurrences(outcome.output, "mylos watchdog: "), 1) << outcome.output;
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(occurrences(outcome.output, fmt::format("\nrank {} (pid ", rank)), 1) << outcome.output;
    }
    EXPECT_GE(occurrences(outcome.output, "all_reduce"), 2) << outcome.output;
    // The entry of the program that makes the call, by pass, number and source line.
    EXPECT_THAT(outcome.output,
                testing::ContainsRegex("all_reduce \\[data; [a-z]+ [0-9]+, [a-z_/]+\\.cpp:[0-9]+\\]"));
    EXPECT_THAT(outcome.output, HasSubstr("step 4"));
  }
};

TEST_P(StoppedRank, IsReportedWithTheLastOperationsOfAll) {
  Words words = GetParam();
  words.emplace_back("--comm.heartbeat=4");
  expect_report("run", train_with_fault("run", "forward:1:4:stop", words));
}

TEST_P(StoppedRank, InAMismatchedCollectiveIsReported) {
  Words words = GetParam();
  words.emplace_back("--comm.timeout=5");
  expect_report("run", train_with_fault("run", "forward:1:4:mismatch", words));
}

INSTANTIATE_TEST_SUITE_P(Carriers, StoppedRank, testing::ValuesIn(carriers));

using RunDirectory = RunTest;

TEST_F(RunDirectory, ThatHoldsARunIsRefusedWithoutRestart) {
  EXPECT_EQ(train("run", {"--train.steps=2"}).exit_code, 0);
  const Outcome outcome = train("run", {"--train.steps=2"});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage));
  EXPECT_EQ(occurrences(outcome.output, run_path("run").string() + " already holds a run"), 1)
      << outcome.output;
  expect_status("run", "done", ExitCode::done);
}

TEST_F(RunDirectory, InUseIsRefusedAndTheFirstJobNamed) {
  Job first(train_arguments("run", {"--train.steps=1000000", "--checkpoint.every=25"}));
  first.wait_until([&] { return occurrences(first.output(), ": wrote ") > 0; });
  const Outcome second = train("run", {"--restart"});
  EXPECT_EQ(second.exit_code, static_cast<int>(ExitCode::usage));
  EXPECT_EQ(occurrences(second.output, fmt::format("is in use by process {} on ", first.rank(0))), 1)
      << second.output;
  expect_status("run", "running", std::nullopt);

  // The lock of a killed job does not block the next one.
  ::kill(first.rank(0), SIGKILL);
  first.wait();
  EXPECT_TRUE(wait_until([&] { return first.processes().empty(); }));
  const std::int64_t last = checkpoint_steps("run").back() + 1;
  const Outcome third =
      train("run", {"--train.steps=1000000", fmt::format("--train.stop_step={}", last), "--restart"});
  EXPECT_EQ(third.exit_code, 0) << third.output;
}

TEST_F(RunDirectory, ThatCannotBeWrittenIsRefused) {
  fs::create_directory(run_path("run"));
  fs::permissions(run_path("run"), fs::perms::owner_read | fs::perms::owner_exec);
  // Permissions bind root too if it gives up the capability to override them.
  JobOptions options;
  if (::getuid() == 0)
    options.wrapper = {"setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"};
  const Outcome outcome = train("run", {}, options);
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::io)) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, run_path("run").string()), 1) << outcome.output;
}

}  // namespace
}  // namespace mylos::test
