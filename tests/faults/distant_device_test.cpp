// SPDX-License-Identifier: BSD-3-Clause
// Runs on a device that executes its work late, in memory that the host cannot reach. Such a device demands
// of the code outside the backends what a GPU demands.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class DistantTest : public RunTest {
 protected:
  void SetUp() override {
    if (!fs::exists(MYLOS_TEST_PLUGINS)) GTEST_SKIP() << "a static build loads no plugins";
  }
  static Words join(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Words on_host(const Words& more) { return join({"--backend.compute=kokkos"}, more); }
  static Words on_device(const Words& more) {
    return join({"--backend.compute=distant", "--plugin-path=" MYLOS_TEST_PLUGINS}, more);
  }
};

class DistantDevice : public DistantTest, public testing::WithParamInterface<RunTest::Words> {};

TEST_P(DistantDevice, GivesTheSameRun) {
  ASSERT_EQ(train("reference", on_host(GetParam())).exit_code, 0);
  const Outcome first =
      train("run", on_device(join(GetParam(), {"--train.stop_step=5", "--backend.graphs=false"})));
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const Outcome rest = train("run", on_device(join(GetParam(), {"--restart", "--backend.graphs=true"})));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  expect_same_run("run", "reference", 8);
}

TEST_P(DistantDevice, ComparesReplicasOfTheStep) {
  const Words words = {"--guard.replica_check_every=2", "--checkpoint.every=0"};
  train_with_fault("run", "step:1:4:flip", on_device(join(GetParam(), words)));
  EXPECT_THAT(expect_status("run", "failed", ExitCode::numerical),
              HasSubstr("step 4: wte.weight differs between replicas"));
}

INSTANTIATE_TEST_SUITE_P(
    Communication, DistantDevice,
    testing::Values(RunTest::Words{"--backend.comm=mpi"},
                    RunTest::Words{"--backend.comm=shm", "--train.dtype=bf16", "--train.micro_batch=2"},
                    RunTest::Words{"--backend.comm=mpi", "--train.dtype=fp16", "--optim.master=none"}));

TEST_F(DistantTest, GivesTheSameRunWithEveryDivision) {
  for (const Words& words :
       {Words{"--parallel.exchange=zero1", "--backend.comm=mpi", "--backend.graphs=true"},
        Words{"--parallel.exchange=zero2", "--backend.comm=shm", "--backend.graphs=true",
              "--train.dtype=bf16", "--train.micro_batch=2"},
        Words{"--parallel.exchange=zero3", "--backend.comm=shm", "--backend.graphs=true",
              "--train.micro_batch=2"},
        Words{"--parallel.tensor=2", "--backend.comm=shm", "--backend.graphs=true", "--train.micro_batch=2"},
        Words{"--parallel.tensor=2", "--parallel.vocab=true", "--parallel.sequence=true",
              "--backend.comm=shm", "--backend.graphs=true", "--train.micro_batch=2"}}) {
    SCOPED_TRACE(words.front());
    Words without_graphs = words;
    std::erase(without_graphs, "--backend.graphs=true");
    fs::remove_all(run_path("reference"));
    fs::remove_all(run_path("run"));
    ASSERT_EQ(train("reference", on_host(without_graphs)).exit_code, 0);
    const Outcome outcome = train("run", on_device(words));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    expect_same_run("run", "reference", 8);
  }
}

/// On one rank, if no checkpoint, evaluation or profile is due, only the reading of results makes the host
/// wait for the device.
class RunAhead : public DistantTest {
 protected:
  Outcome train_alone(const std::string& run, const Words& words, const std::string& fault = "") const {
    return train(run, words, {.ranks = 1, .environment = {"MYLOS_FAULT=" + fault}});
  }
  /// How often the device ran out of work while the host waited for it.
  int times_idle(const std::string& run, int steps) const {
    const Words words = {fmt::format("--train.steps={}", steps), "--checkpoint.every=0"};
    const std::string output = train_alone(run, on_device(words)).output;
    const std::string before = "the distant device was idle ";
    const std::size_t at = output.find(before);
    EXPECT_NE(at, std::string::npos) << output;
    return at == std::string::npos ? -1 : std::atoi(output.c_str() + at + before.size());
  }
};

TEST_F(RunAhead, KeepsTheDeviceBusy) {
  const int idle = times_idle("short", 4);
  EXPECT_GT(idle, 0);
  EXPECT_EQ(times_idle("long", 40), idle);
}

TEST_F(RunAhead, GivesTheSameRun) {
  const Words words = {"--train.steps=24",
                       "--checkpoint.every=7",
                       "--checkpoint.keep=9",
                       "--eval.every=5",
                       "--data.valid=" + tokens().string(),
                       "--profile.step=18"};
  const std::string fault = "backward:0:7:nan";  // delays a checkpoint by one step
  const Outcome host = train_alone("reference", on_host(words), fault);
  ASSERT_EQ(host.exit_code, 0) << host.output;
  const Outcome first =
      train_alone("run", on_device(join(words, {"--train.stop_step=12", "--backend.graphs=false"})), fault);
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_THAT(first.output, HasSubstr("step 7: update not applied"));
  expect_every_step_once("run", 12);
  const Outcome rest = train_alone("run", on_device(join(words, {"--restart", "--backend.graphs=true"})));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr("bitwise"));
  EXPECT_THAT(checkpoint_steps("reference"), ElementsAre(8, 14, 21, 24));
  EXPECT_THAT(checkpoint_steps("run"), ElementsAre(8, 12, 14, 21, 24));
  for (const std::int64_t step : {8, 14, 21}) {
    expect_same_checkpoint(snapshot("run", step), snapshot("reference", step));
  }
  expect_same_run("run", "reference", 24);
  EXPECT_EQ(read_table("run", "eval")["step"], (std::vector<double>{5, 10, 15, 20, 24}));
}

TEST_F(RunAhead, ScalesTheLossOnTheDevice) {
  const Words words = {"--train.dtype=fp16", "--train.loss_scale=16777216"};
  ASSERT_EQ(train_alone("reference", on_host(words)).exit_code, 0);
  const Outcome outcome = train_alone("run", on_device(words));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step 1: update not applied: a gradient overflowed"));
  expect_same_run("run", "reference", 8);
}

TEST_F(RunAhead, EndsAsTheHostDoesIfTheGuardStops) {
  const Words words = {"--guard.policy=stop", "--checkpoint.every=3"};
  const std::string fault = "reduce:0:4:nan";
  EXPECT_EQ(train_alone("reference", on_host(words), fault).exit_code, static_cast<int>(ExitCode::numerical));
  const Outcome outcome = train_alone("run", on_device(words), fault);
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::numerical)) << outcome.output;
  EXPECT_EQ(expect_status("run", "failed", ExitCode::numerical),
            expect_status("reference", "failed", ExitCode::numerical));
  EXPECT_EQ(status_step("run"), 4);
  EXPECT_THAT(checkpoint_steps("run"), ElementsAre(3));
  expect_every_step_once("run", 4);
  expect_same_run("run", "reference", 3);
}

TEST_F(RunAhead, FinishesTheStepUnderWayWhenASignalStopsIt) {
  const Words words = {"--train.steps=1000000", "--checkpoint.every=0"};
  Job job(train_arguments("run", on_device(words)), {.ranks = 1});
  job.wait_until([&] { return occurrences(job.output(), "step ") > 0; });
  ::kill(job.rank(0), SIGTERM);
  const Outcome outcome = job.wait();
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::preempted)) << outcome.output;
  EXPECT_THAT(expect_status("run", "preempted", ExitCode::preempted), HasSubstr("with a checkpoint"));
  const std::int64_t step = status_step("run");
  expect_every_step_once("run", step);
  const std::string stop = fmt::format("--train.stop_step={}", step);
  EXPECT_EQ(train_alone("reference", on_host(join(words, {stop}))).exit_code, 0);
  expect_same_run("run", "reference", step);
}

}  // namespace
}  // namespace mylos::test
