// SPDX-License-Identifier: BSD-3-Clause
// Where a time of a whole job begins and ends, and what a limit interrupts: with a clock that the test drives
// (MYLOS_CLOCK). Nothing takes any time unless the test says so.
#include "tests/faults/driven_clock.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class DrivenTimes : public RunTest {
 protected:
  /// Options with which no rank counts as silent, however far the clock jumps.
  static Words patient(const Words& more) {
    Words words = {"--comm.heartbeat=1e6", "--comm.timeout=1e6", "--io.timeout=1e6"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  /// A job whose `rank` takes `seconds` in a phase: it is stopped there while the clock advances.
  Outcome train_slowly(const std::string& run, const std::string& phase, int rank, std::int64_t step,
                       std::int64_t seconds, const Words& more = {}) {
    const fs::path file = scratch() / "clock";
    fs::remove(file);
    DrivenClock clock(file);
    Job job(train_arguments(run, patient(more)),
            {.environment = {fmt::format("MYLOS_FAULT={}:{}:{}:stop", phase, rank, step), clock.variable()}});
    let_pass(job, rank, clock, seconds);
    const Outcome outcome = job.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, clock.variable() + " is set"), 1) << outcome.output;
    return outcome;
  }

  /// Waits until `rank` is stopped, then continues it `seconds` later.
  static void let_pass(const Job& job, int rank, DrivenClock& clock, std::int64_t seconds) {
    const pid_t process = job.rank(rank);
    job.wait_until([&] { return is_stopped(process); });
    clock.advance(seconds);
    ::kill(process, SIGCONT);
  }

  static std::vector<double> only(std::size_t row, double value) {
    std::vector<double> column(8, 0.0);
    column.at(row) = value;
    return column;
  }
};

/// Rank 1 is stopped between its reductions and its update; for the norm, rank 0 needs it.
TEST_F(DrivenTimes, OfAStepAreThoseOfTheSlowestRank) {
  train_slowly("run", "reduce", 1, 3, 10, {"--checkpoint.every=0"});
  MetricsTable steps = steps_table("run");
  for (const char* column : {"time_step", "rank_time_min", "rank_time_median", "rank_time_max"})
    EXPECT_EQ(steps[column], only(2, 10.0)) << column;
  EXPECT_EQ(steps["time_communication"][2] + steps["time_optimizer"][2], 10.0);
  // Rank 0 may be slower than the test, and ask for the norm only when rank 1 goes on.
  EXPECT_THAT(steps["wait_data"], testing::AnyOf(only(2, 10.0), only(2, 0.0)));
  for (const char* column :
       {"time_data", "time_forward", "time_backward", "time_checkpoint", "time_evaluation"})
    EXPECT_THAT(steps[column], Each(0.0)) << column;
  EXPECT_EQ(steps["tokens_per_second"][2], 12 * 16 / 10.0);
  for (const char* column : {"time_launch", "time_data", "time_restore"})
    EXPECT_THAT(read_table("run", "launches")[column], ElementsAre(0.0)) << column;
}

// Rank 0 writes the metrics, so the next times are its own.

TEST_F(DrivenTimes, OfTheLaunchBeginWithTheProcess) {
  train_slowly("launched", "launch", 0, 0, 10);
  EXPECT_THAT(read_table("launched", "launches")["time_launch"], ElementsAre(10.0));
  EXPECT_THAT(read_table("launched", "launches")["time_data"], ElementsAre(0.0));
  train_slowly("read", "data", 0, 0, 10);
  EXPECT_THAT(read_table("read", "launches")["time_launch"], ElementsAre(10.0));
  EXPECT_THAT(read_table("read", "launches")["time_data"], ElementsAre(10.0));
  EXPECT_THAT(steps_table("read")["time_step"], Each(0.0));
}

TEST_F(DrivenTimes, OfAnEvaluationAreNotThoseOfItsStep) {
  train_slowly("run", "evaluation", 0, 3, 10,
               {"--data.valid=" + tokens().string(), "--eval.every=3", "--eval.batches=1"});
  MetricsTable steps = steps_table("run");
  EXPECT_EQ(steps["time_evaluation"], only(2, 10.0));
  EXPECT_EQ(steps["time_step"], only(2, 10.0));
  EXPECT_THAT(steps["rank_time_max"], Each(0.0));
}

TEST_F(DrivenTimes, OfACheckpointAreInTheNextRow) {
  const Words every_4 = {"--checkpoint.every=4"};
  train_slowly("written", "checkpoint.write", 1, 4, 10, every_4);
  MetricsTable written = read_table("written", "checkpoints");
  EXPECT_THAT(written["step"], ElementsAre(4, 8));
  EXPECT_THAT(written["time_stall"], ElementsAre(10, 0));
  EXPECT_THAT(written["time_write"], ElementsAre(10, 0));
  EXPECT_THAT(written["time_verify"], ElementsAre(0, 0));
  EXPECT_EQ(steps_table("written")["time_checkpoint"], only(4, 10.0));
  EXPECT_EQ(steps_table("written")["time_step"], only(4, 10.0));
  EXPECT_THAT(steps_table("written")["rank_time_max"], Each(0.0));
  // Between reading it back and removing older ones.
  train_slowly("verified", "checkpoint.purge", 1, 4, 10, every_4);
  MetricsTable verified = read_table("verified", "checkpoints");
  EXPECT_THAT(verified["time_write"], ElementsAre(0, 0));
  EXPECT_THAT(verified["time_verify"], ElementsAre(10, 0));
  train_slowly("beside", "checkpoint.write", 1, 4, 10, {every_4[0], "--checkpoint.async=true"});
  EXPECT_THAT(read_table("beside", "checkpoints")["time_write"], ElementsAre(10, 0));
}

/// Counts the seconds until the wall-clock limit ends a run. The last rank stops at the same phase of every
/// step or evaluation and goes on some seconds later; nothing else takes any time.
class DrivenWallClock : public DrivenTimes {
 protected:
  struct Ended {
    std::int64_t step = 0;     ///< its last
    std::int64_t seconds = 0;  ///< of the run
  };

  /// The n-th stop takes `seconds[n]`, later ones take the last of these.
  Ended ended(const std::string& run, const std::string& phase, const std::vector<std::int64_t>& seconds,
              const Words& more, int ranks = 2) {
    const fs::path file = scratch() / "clock";
    fs::remove(file);
    DrivenClock clock(file);
    const int last = ranks - 1;
    Job job(train_arguments(run, patient(more)),
            {.ranks = ranks,
             .environment = {fmt::format("MYLOS_FAULT={}:{}:*:stop", phase, last), clock.variable()}});
    const pid_t rank = job.rank(last);
    const std::string stopped = fmt::format("rank {}: fault stop at {} of step ", last, phase);
    for (std::size_t n = 0;; ++n) {
      wait_until([&] {
        return !job.running() ||
               (occurrences(job.output(), stopped) > static_cast<int>(n) && is_stopped(rank));
      });
      if (!job.running()) break;
      clock.advance(seconds[std::min(n, seconds.size() - 1)]);
      ::kill(rank, SIGCONT);
    }
    const Outcome outcome = job.wait();
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::preempted)) << outcome.output;
    EXPECT_THAT(expect_status(run, "preempted", ExitCode::preempted), HasSubstr("wall-clock limit"));
    expect_loads(run, status_step(run));
    return {status_step(run), clock.seconds()};
  }

  static Words limited_to(int seconds, const Words& more = {"--checkpoint.every=0"}) {
    Words words = {fmt::format("--train.wall_clock={}", seconds), "--train.steps=1000000"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // Until a checkpoint was timed: one second, and 12 bytes for each of 34208 parameters at 100 MB/s.
  static constexpr double guess = 1.0 + 12.0 * 34208 * 1e-8;
  /// Whether the run must stop: it needs twice the time of the slowest step and checkpoint, and a second.
  static bool is_near(double limit, std::int64_t elapsed, double step, double checkpoint) {
    return static_cast<double>(elapsed) + 2.0 * (step + checkpoint) + 1.0 > limit;
  }
};

TEST_F(DrivenWallClock, LeavesTimeForASlowStepAndACheckpoint) {
  const Ended even = ended("even", "forward", {1}, limited_to(30));
  EXPECT_EQ(even.step, even.seconds);
  EXPECT_TRUE(is_near(30, even.seconds, 1, guess));
  EXPECT_FALSE(is_near(30, even.seconds - 1, 1, guess));
  // One slow step makes it stop earlier.
  const Ended uneven = ended("uneven", "backward", {1, 1, 5, 1}, limited_to(30));
  EXPECT_EQ(uneven.seconds, uneven.step + 4);
  EXPECT_TRUE(is_near(30, uneven.seconds, 5, guess));
  EXPECT_FALSE(is_near(30, uneven.seconds - 1, 5, guess));
}

/// The last checkpoint takes three seconds too, within the limit.
TEST_F(DrivenWallClock, ExpectsACheckpointAsSlowAsTheSlowest) {
  const Ended run = ended("run", "checkpoint.write", {3}, limited_to(30, {"--checkpoint.every=1"}));
  const std::int64_t decided = run.seconds - 3;
  EXPECT_EQ(run.seconds, 3 * run.step);
  EXPECT_TRUE(is_near(30, decided, 0, 3));
  EXPECT_FALSE(is_near(30, decided - 3, 0, 3));
  EXPECT_LE(run.seconds, 30);
}

/// The limit interrupts an evaluation, so it reserves no time for one.
TEST_F(DrivenWallClock, ReservesNoTimeForEvaluations) {
  const Ended run = ended("run", "evaluation", {4},
                          limited_to(30, {"--checkpoint.every=0", "--data.valid=" + tokens().string(),
                                          "--eval.every=1", "--eval.batches=1"}));
  EXPECT_TRUE(is_near(30, run.seconds, 0, guess));
  EXPECT_FALSE(is_near(30, run.seconds - 4, 0, guess));
}

/// The limit counts from the launch of the process, whatever it is busy with; 12 seconds are near a limit of
/// 15, not near one of 16.
TEST_F(DrivenWallClock, BeginsWithTheLaunch) {
  ASSERT_TRUE(is_near(15, 12, 0, guess));
  ASSERT_FALSE(is_near(16, 12, 0, guess));
  for (const std::string phase : {"launch", "data"}) {
    SCOPED_TRACE(phase);
    for (const int ranks : {1, 2})
      EXPECT_EQ(ended(fmt::format("{}{}", phase, ranks), phase, {12}, limited_to(15), ranks).step, 1);
    train_slowly(phase + "_done", phase, 1, 0, 12, {"--train.wall_clock=16", "--checkpoint.every=0"});
  }
}

/// The end of the job is a limit too, less the margin; the earlier limit counts.
TEST_F(DrivenWallClock, EndsWithTheJob) {
  constexpr std::int64_t far = 1'000'000;  // seconds, much more than the test takes
  const std::string end = fmt::format("{}", std::time(nullptr) + far);
  const Words both = {"--train.end_margin=100", "--train.wall_clock=2e6"};
  const auto stopped = [&](const std::string& run, std::int64_t advance, const Words& more,
                           const Words& variables) {
    const fs::path file = scratch() / "clock";
    fs::remove(file);
    DrivenClock clock(file);
    Words environment = {clock.variable(), "MYLOS_FAULT=launch:1:0:stop"};
    environment.insert(environment.end(), variables.begin(), variables.end());
    Words words = patient({"--checkpoint.every=0"});
    words.insert(words.end(), both.begin(), both.end());
    words.insert(words.end(), more.begin(), more.end());
    Job job(train_arguments(run, words), {.environment = environment});
    let_pass(job, 1, clock, advance);
    return job.wait();
  };
  const Outcome early = stopped("early", far - 200, {"--train.end_time=" + end}, {});
  EXPECT_EQ(early.exit_code, 0) << early.output;
  const Outcome named = stopped("named", far - 60, {"--train.end_time=" + end}, {});
  EXPECT_EQ(named.exit_code, static_cast<int>(ExitCode::preempted)) << named.output;
  EXPECT_THAT(expect_status("named", "preempted", ExitCode::preempted),
              HasSubstr("the end of the job is near"));
  EXPECT_EQ(status_step("named"), 1);
  const Words slurm = {"SLURM_JOB_ID=17", "SLURM_JOB_END_TIME=" + end};
  EXPECT_EQ(stopped("slurm", far - 60, {}, slurm).exit_code, static_cast<int>(ExitCode::preempted));
  EXPECT_EQ(stopped("ignored", far - 60, {"--train.end_time=none"}, slurm).exit_code, 0);
}

/// At the last step, only the evaluation is left: the run is not done without it, and the restart makes it.
TEST_F(DrivenWallClock, LeavesTheLastEvaluationToTheRestart) {
  ASSERT_TRUE(is_near(8, 3, 1, guess));
  ASSERT_FALSE(is_near(8, 2, 1, guess));
  const Words three = {"--train.steps=3", "--checkpoint.every=0", "--data.valid=" + tokens().string()};
  Words limited = three;
  limited.emplace_back("--train.wall_clock=8");
  EXPECT_EQ(ended("run", "forward", {1}, limited).step, 3);
  EXPECT_THAT(read_table("run", "eval")["step"], testing::IsEmpty());
  Words rest = three;
  rest.emplace_back("--restart");
  const Outcome outcome = train("run", rest);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(read_table("run", "eval")["step"], ElementsAre(3));
  expect_every_step_once("run", 3);
}

class DrivenWatchdog : public DrivenTimes {
 protected:
  /// Waits until the process has sent a heartbeat and then looked at the other ranks. The thread that does
  /// both sleeps after each time; a signal may interrupt one sleep.
  static void let_look(const Job& job, pid_t process) {
    const std::int64_t before = sleeps_of_watchdog(process);
    job.wait_until([&] { return sleeps_of_watchdog(process) > before + 2; });
  }

 private:
  static std::int64_t sleeps_of_watchdog(pid_t process) {
    for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", process))) {
      if (slurp(thread.path() / "comm") != "watchdog\n") continue;
      const std::string status = slurp(thread.path() / "status");
      const std::string_view key = "\nvoluntary_ctxt_switches:";
      return std::stoll(status.substr(status.find(key) + key.size()));
    }
    throw std::runtime_error("no thread is named watchdog");
  }
};

/// Time before a collective, and in other collectives, does not count: rank 1 is late at two steps, and at
/// the third too late. It is stopped outside its computations, whose limit is the same.
TEST_F(DrivenWatchdog, CountsFromTheBeginningOfTheCollective) {
  DrivenClock clock(scratch() / "clock");
  Job job(train_arguments("run", {"--comm.heartbeat=1e6", "--io.timeout=1e6", "--comm.timeout=8",
                                  "--checkpoint.every=0"}),
          {.environment = {"MYLOS_FAULT=forward:1:*:stop", clock.variable()}});
  for (int late = 0; late < 2; ++late) let_pass(job, 1, clock, 6);
  job.wait_until([&] { return is_stopped(job.rank(1)); });
  EXPECT_GE(seconds_until_end(job, clock), 8);
  EXPECT_THAT(job.wait().output, HasSubstr("mylos watchdog: "));
  EXPECT_THAT(
      expect_status("run", "failed", ExitCode::watchdog),
      testing::AllOf(HasSubstr("stalled collective: rank 0 has been in "), HasSubstr("for more than 8.0 s")));
}

/// A rank whose rows the others wait for: the report names the exchange, its entry in the list and the layer.
TEST_F(DrivenWatchdog, NamesTheExchangeOfRowsBetweenExperts) {
  DrivenClock clock(scratch() / "clock");
  Job job(train_arguments("run", {"--model.experts=4", "--parallel.expert=2", "--comm.heartbeat=1e6",
                                  "--io.timeout=1e6", "--comm.timeout=8", "--checkpoint.every=0"}),
          {.environment = {"MYLOS_FAULT=forward:1:3:stop", clock.variable()}});
  job.wait_until([&] { return is_stopped(job.rank(1)); });
  EXPECT_GE(seconds_until_end(job, clock), 8);
  EXPECT_EQ(job.wait().exit_code, static_cast<int>(ExitCode::watchdog));
  EXPECT_THAT(expect_status("run", "failed", ExitCode::watchdog),
              testing::ContainsRegex("rank 0 has been in all_to_all .expert; forward [0-9]+ in h.0, "
                                     "core/model/expert_layer.cpp:"));
}

/// Time before a call to the file system does not count, nor does the time that ranks wait for each other.
TEST_F(DrivenWatchdog, CountsFromTheBeginningOfTheCallToTheFileSystem) {
  DrivenClock clock(scratch() / "clock");
  const std::string hanging = (run_path("run") / "checkpoints/step_000004.tmp/weights.h5").string();
  Job job(train_arguments("run", {"--comm.heartbeat=1e6", "--comm.timeout=1e6", "--io.timeout=8"}),
          {.environment = {"MYLOS_FAULT=forward:1:3:stop", clock.variable(), "LD_PRELOAD=" MYLOS_PRELOADED,
                           fmt::format("MYLOS_FAIL={}:0:fsync:1:-1", hanging)}});
  let_pass(job, 1, clock, 6);
  job.wait_until([&] { return occurrences(job.output(), "failing call: fsync") == 1; });
  EXPECT_GE(seconds_until_end(job, clock), 8);
  job.wait();
  EXPECT_THAT(expect_status("run", "failed", ExitCode::io),
              testing::AllOf(HasSubstr("hanging file system: rank 0 has been in fsync ["),
                             HasSubstr("for more than 8.0 s")));
}

/// Silence counts from the last sign of life; its limit is that of comm.heartbeat.
TEST_F(DrivenWatchdog, CountsFromTheLastSignOfLife) {
  DrivenClock clock(scratch() / "clock");
  Job job(train_arguments("run", {"--comm.heartbeat=8", "--comm.timeout=1e6", "--io.timeout=1e6",
                                  "--train.steps=1000000", "--checkpoint.every=0"}),
          {.environment = {"MYLOS_FAULT=forward:1:4:stop", clock.variable()}});
  let_pass(job, 1, clock, 6);
  // Rank 0 sees the heartbeat that rank 1 sends now.
  for (const int rank : {1, 0}) let_look(job, job.rank(rank));
  ::kill(job.rank(1), SIGSTOP);
  EXPECT_GE(seconds_until_end(job, clock), 8);
  job.wait();
  EXPECT_THAT(expect_status("run", "failed", ExitCode::watchdog), HasSubstr("stopped rank 1: "));
}

TEST_F(DrivenWatchdog, WaitsForTheStartAsLongAsItSays) {
  DrivenClock clock(scratch() / "clock");
  Job job(train_arguments("run", {"--comm.start_timeout=8"}), {.environment = {clock.variable()}});
  ::kill(job.rank(1), SIGSTOP);
  // A hundred looks, each of which counts at most four hundredths.
  EXPECT_GE(seconds_until_end(job, clock, std::chrono::milliseconds(200), std::chrono::milliseconds(80)), 8);
  EXPECT_THAT(job.wait().output, HasSubstr("mylos watchdog: "));
}

TEST_F(DrivenWatchdog, RefusesAClockThatIsNone) {
  spill(scratch() / "short", "1234");
  for (const fs::path& file : {scratch() / "short", scratch() / "missing"}) {
    const Outcome outcome = train("run", {}, {.environment = {"MYLOS_CLOCK=" + file.string()}});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    EXPECT_THAT(outcome.output,
                HasSubstr(fmt::format("MYLOS_CLOCK=\"{}\" is not a file of 8 bytes", file.string())));
  }
}

}  // namespace
}  // namespace mylos::test
