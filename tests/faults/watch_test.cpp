// SPDX-License-Identifier: BSD-3-Clause
// Whatever a job waits for, it ends by itself: ranks that do not start, files that do not answer, other
// nodes, long evaluations.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <system_error>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/tokens/token_dataset.hpp"
#include "tests/faults/driven_clock.hpp"
#include "tests/faults/run_fixture.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

using testing::AnyOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Watch : public RunTest {
 protected:
  static Words preloaded(const std::string& plan) {
    return {"LD_PRELOAD=" MYLOS_PRELOADED, "MYLOS_FAIL=" + plan};
  }
  static bool is_waiting_for_files(const Job& job) { return occurrences(job.output(), "failing call: ") > 0; }
};

TEST_F(Watch, EndsAJobIfARankDoesNotStart) {
  for (const int rank : {0, 1}) {
    Job job(train_arguments("run", {"--comm.start_timeout=2"}));
    ::kill(job.rank(rank), SIGSTOP);
    const Outcome outcome = job.wait();
    // MPICH's launcher reports the code of the running rank; SIGKILL, which ends the stopped rank; or 1, if
    // it collects the running rank before it sees that rank's connection close.
    EXPECT_THAT(outcome.exit_code, AnyOf(1, SIGKILL, static_cast<int>(ExitCode::watchdog))) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("mylos watchdog: "));
    fs::remove_all(run_path("run"));
  }
}

TEST_F(Watch, FindsAStoppedRankAtTheShortestHeartbeats) {
  int rank = 0;
  for (const char* heartbeat : {"0.1", "0.3", "0.4"}) {
    const std::string run = fmt::format("run-{}", heartbeat);
    const Outcome outcome =
        run_on_clock(train_arguments(run, {fmt::format("--comm.heartbeat={}", heartbeat)}),
                     {.environment = {fmt::format("MYLOS_FAULT=forward:{}:4:stop", rank)}},
                     [&](const Job& job) { return is_stopped(job.rank(rank)); });
    // The clock passes in steps of half a second, so that the other rank may be silent for as long.
    EXPECT_THAT(expect_status(run, "failed", ExitCode::watchdog), HasSubstr("stopped rank "));
    rank = 1 - rank;
  }
}

TEST_F(Watch, SeesOtherNodesByTheirMessages) {
  const Outcome outcome = run_until_silent(
      train_arguments("run", {"--backend.comm=mpi"}), 1, "forward:1:4:stop",
      {.ranks = 3, .wrapper = {"unshare", "-u", "sh", "-c", R"(hostname node$PMI_RANK; exec "$@")", "sh"}});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::watchdog)) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "mylos watchdog: "), 1) << outcome.output;
  EXPECT_THAT(outcome.output,
              ContainsRegex("on another node has given no sign of life for ([89]|10)\\.[0-9] s"));
  EXPECT_THAT(outcome.output, HasSubstr("on another node, SILENT), step "));
  EXPECT_THAT(expect_status("run", "failed", ExitCode::watchdog), HasSubstr("stopped rank 1"));
}

TEST_F(Watch, EndsAJobWhoseFilesDoNotAnswer) {
  int n = 0;
  for (const Words& more : {Words{}, Words{"--checkpoint.async=true"}}) {
    for (const int rank : {0, 1}) {
      const std::string run = fmt::format("run{}", ++n);
      SCOPED_TRACE(run);
      Words words = {"--io.timeout=8", "--comm.heartbeat=1e6"};
      words.insert(words.end(), more.begin(), more.end());
      const std::string plan = fmt::format(
          "{}:{}:fsync:1:-1", (run_path(run) / "checkpoints/step_000004.tmp/weights.h5").string(), rank);
      const Outcome outcome =
          run_on_clock(train_arguments(run, words), {.environment = preloaded(plan)}, is_waiting_for_files);
      EXPECT_NE(outcome.exit_code, 0);
      const std::string reason = expect_status(run, "failed", ExitCode::io);
      EXPECT_THAT(reason, HasSubstr(fmt::format("hanging file system: rank {} has been in fsync [", rank)));
      EXPECT_THAT(reason, HasSubstr("weights.h5]"));
      EXPECT_THAT(verify_checkpoint(checkpoint_path(run, 2)), IsEmpty());
    }
  }
}

TEST_F(Watch, EndsAJobWhoseSamplesDoNotCome) {
  // The first reads belong to the start; later ones fetch samples ahead of their use.
  const Words words = {"--io.timeout=8", "--comm.heartbeat=1e6", "--train.steps=1000"};
  const std::string plan = fmt::format("{}:1:pread:100:-1", tokens().string());
  const Outcome outcome =
      run_on_clock(train_arguments("run", words), {.environment = preloaded(plan)}, is_waiting_for_files);
  EXPECT_NE(outcome.exit_code, 0);
  const std::string reason = expect_status("run", "failed", ExitCode::io);
  EXPECT_THAT(reason, HasSubstr("hanging file system: rank 1 has been in read ["));
  EXPECT_THAT(reason, HasSubstr("train.bin]"));
}

TEST_F(Watch, DoesNotWaitForFilesToEndAJob) {
  // The first status, which says that the run is running, is still written.
  const std::string plan = fmt::format("{}:0:fsync:2:-1", (run_path("run") / "status.json").string());
  const Outcome outcome =
      run_until_silent(train_arguments("run"), 1, "forward:1:4:stop", {.environment = preloaded(plan)});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::watchdog)) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("mylos watchdog: stopped rank 1"));
  expect_status("run", "running", std::nullopt);
}

TEST_F(Watch, NoRankTrainsBeforeTheStatusSaysSo) {
  const fs::path release = scratch() / "release";
  const std::string plan = fmt::format("{}:0:fsync:1:-2", (run_path("run") / "resolved.deck").string());
  Words environment = preloaded(plan);
  environment.push_back("MYLOS_RELEASE=" + release.string());
  environment.emplace_back("MYLOS_FAULT=forward:1:1:stop");
  Job job(train_arguments("run"), {.environment = environment});
  job.wait_until([&] { return is_waiting_for_files(job); });
  spill(release, "");
  job.wait_until([&] { return is_stopped(job.rank(1)); });
  expect_status("run", "running", std::nullopt);
  ::kill(job.rank(1), SIGCONT);
  EXPECT_EQ(job.wait().exit_code, 0);
}

bool has_open(pid_t process, const fs::path& file) {
  const fs::directory_iterator descriptors(fmt::format("/proc/{}/fd", process));
  return std::ranges::any_of(descriptors, [&](const fs::directory_entry& descriptor) {
    std::error_code closed_meanwhile;
    return fs::read_symlink(descriptor, closed_meanwhile) == file;
  });
}

/// Has a file whose evaluation takes minutes.
class LongEvaluation : public RunTest {
 protected:
  LongEvaluation() {
    TokenFileWriter writer(endless());
    const std::vector<std::uint16_t> block(std::size_t{1} << 20U, 7);
    for (int i = 0; i < 64; ++i) writer.append(block);
    writer.finish();
  }
  fs::path endless() const { return scratch() / "endless.bin"; }
  Words arguments(const fs::path& valid) const {
    return {"--data.valid=" + valid.string(), "--eval.every=4", "--eval.batches=0"};
  }
  void expect_continued() {
    EXPECT_THAT(read_table("run", "eval")["step"], IsEmpty());
    Words rest = arguments(tokens());
    rest.emplace_back("--restart");
    const Outcome continued = train("run", rest);
    EXPECT_EQ(continued.exit_code, 0) << continued.output;
    EXPECT_EQ(train("whole", arguments(tokens())).exit_code, 0);
    expect_same_run("run", "whole", 8);
    EXPECT_THAT(read_table("run", "eval")["step"], ElementsAre(4, 8));
  }
};

TEST_F(LongEvaluation, IsInterruptedBySignalsAndMadeAfterTheRestart) {
  Job job(train_arguments("run", arguments(endless())));
  job.wait_until([&] { return fs::exists(checkpoint_path("run", 2)); });
  ::kill(job.rank(1), SIGTERM);
  EXPECT_EQ(job.wait().exit_code, static_cast<int>(ExitCode::preempted));
  EXPECT_THAT(expect_status("run", "preempted", ExitCode::preempted), HasSubstr("signal 15"));
  EXPECT_LE(status_step("run"), 4);
  expect_continued();
}

TEST_F(LongEvaluation, InEvalEndsIfARankStops) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}).exit_code, 0);
  for (const int rank : {0, 1}) {
    const Outcome outcome =
        run_on_clock({"eval", run_path("run").string(), "--data=" + endless().string(), "--comm.heartbeat=8"},
                     {}, [&](const Job& job) {
                       return has_open(job.rank(rank), endless()) && ::kill(job.rank(rank), SIGSTOP) == 0;
                     });
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::watchdog)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("mylos watchdog: stopped rank {}", rank)));
    EXPECT_EQ(occurrences(outcome.output, "mylos watchdog: "), 1) << outcome.output;
  }
}

TEST_F(LongEvaluation, IsInterruptedByTheWallClockLimit) {
  Words words = arguments(endless());
  for (const char* more :
       {"--train.wall_clock=60", "--comm.heartbeat=1e6", "--comm.timeout=1e6", "--io.timeout=1e6"})
    words.emplace_back(more);
  DrivenClock clock(scratch() / "clock");
  Job job(train_arguments("run", words),
          {.environment = {"MYLOS_FAULT=evaluation:1:4:stop", clock.variable()}});
  job.wait_until([&] { return is_stopped(job.rank(1)); });
  clock.advance(100);
  ::kill(job.rank(1), SIGCONT);
  const Outcome outcome = job.wait();
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::preempted)) << outcome.output;
  EXPECT_THAT(expect_status("run", "preempted", ExitCode::preempted), HasSubstr("wall-clock limit"));
  EXPECT_EQ(status_step("run"), 4);
  expect_continued();
}

}  // namespace
}  // namespace mylos::test
