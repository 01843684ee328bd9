// SPDX-License-Identifier: BSD-3-Clause
// All ranks must see one directory of the run and one of its checkpoints before the first step. Rank 1 is a
// node of its own if its process has mounts of its own.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/driven_clock.hpp"
#include "tests/faults/run_fixture.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int usage = static_cast<int>(ExitCode::usage);

class SharedDirectory : public RunTest {
 protected:
  // Only root can mount without a user namespace of its own.
  static std::string unshare() {
    return ::geteuid() == 0 ? "unshare --mount" : "unshare --map-root-user --mount";
  }
  static bool may_mount() {
    return std::system((unshare() + " mount -t tmpfs none /mnt 2>/dev/null").c_str()) == 0;
  }
  /// Rank 1 runs `command` before it starts. In user namespaces of their own, ranks cannot open each other's
  /// memory.
  static JobOptions on_its_own_node(const std::string& command, const Words& environment = {}) {
    JobOptions options{.environment = environment};
    options.environment.emplace_back("UCX_TLS=sysv,self");
    options.wrapper = {"sh", "-c",
                       "if [ $PMI_RANK = 1 ]; then exec " + unshare() + " sh -c '" + command +
                           R"( && exec "$@"' sh "$@"; fi; exec "$@")",
                       "sh"};
    return options;
  }
  static std::string private_disk(const fs::path& directory) {
    return "mount -t tmpfs none " + directory.string();
  }

  /// The files of all of the scratch directory, but not of other mounts, that ranks looked for.
  std::vector<fs::path> probes() const {
    std::vector<fs::path> found;
    std::error_code changes;  // while a job runs
    for (fs::recursive_directory_iterator entry(scratch(), changes), end; entry != end;
         entry.increment(changes)) {
      if (entry->path().filename().native().starts_with(".mylos-shared-")) found.push_back(entry->path());
    }
    return found;
  }

  /// Trains with a clock that leaps over a minute as soon as rank 1 looks. No other limit counts.
  Outcome train_for_a_minute(const std::string& run, const Words& more, const std::string& command) const {
    const fs::path file = scratch() / "clock";
    fs::remove(file);
    DrivenClock clock(file);
    Words words = {"--comm.heartbeat=1e6", "--comm.timeout=1e6", "--io.timeout=1e6"};
    words.insert(words.end(), more.begin(), more.end());
    Job job(train_arguments(run, words), on_its_own_node(command, {clock.variable()}));
    job.wait_until([&] { return !probes().empty() || !job.running(); });
    clock.advance(59);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_TRUE(job.running());  // it may as well not have looked at the clock yet
    clock.advance(2);
    return job.wait();
  }

  static void expect_refused(const Outcome& outcome, const std::string& key, const fs::path& directory) {
    EXPECT_EQ(outcome.exit_code, usage) << outcome.output;
    EXPECT_THAT(
        outcome.output,
        ContainsRegex("mylos: " + key + " \"" + directory.string() +
                      "\" is not the same directory on every node: rank 1 on [^ ]+ does not see what rank 0 "
                      "on [^ ]+ wrote; give a directory on a file system that all nodes share"));
    EXPECT_EQ(occurrences(outcome.output, "mylos: "), 2) << outcome.output;  // one is about the clock
  }
};

TEST_F(SharedDirectory, OfARunMustBeOne) {
  if (!may_mount()) GTEST_SKIP() << "this user may not mount anything";
  // Rank 1 has not even the parent; the run's directory is new.
  const fs::path disk = scratch() / "disk";
  fs::create_directory(disk);
  const fs::path run = disk / "runs/a";
  expect_refused(train_for_a_minute("disk/runs/a", {}, private_disk(disk)), "run.dir", run);
  EXPECT_THAT(probes(), IsEmpty());
  EXPECT_TRUE(fs::is_empty(disk));
  // It is there on both, and on rank 0's it has something.
  fs::create_directories(run);
  spill(run / "metrics.h5", "of an earlier run");
  expect_refused(train_for_a_minute("disk/runs/a", {}, private_disk(run)), "run.dir", run);
  EXPECT_EQ(slurp(run / "metrics.h5"), "of an earlier run");
  fs::remove(run / "metrics.h5");
  EXPECT_TRUE(fs::is_empty(run));
  // Nothing is in the way of the next one.
  const Outcome outcome = train("disk/runs/a");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST_F(SharedDirectory, OfCheckpointsMustBeOne) {
  if (!may_mount()) GTEST_SKIP() << "this user may not mount anything";
  const fs::path disk = scratch() / "disk";
  fs::create_directory(disk);
  const Words elsewhere = {"--checkpoint.dir=" + (disk / "a").string()};
  expect_refused(train_for_a_minute("run", elsewhere, private_disk(disk)), "checkpoint.dir", disk / "a");
  EXPECT_TRUE(fs::is_empty(disk));
  EXPECT_FALSE(fs::exists(run_path("run")));
  // A restart, with the link that the run has made.
  Words half = elsewhere;
  half.emplace_back("--train.stop_step=4");
  ASSERT_EQ(train("run", half).exit_code, 0);
  expect_refused(train_for_a_minute("run", {"--restart"}, private_disk(disk / "a")), "checkpoint.dir",
                 run_path("run") / "checkpoints");
  expect_status("run", "stopped", ExitCode::done);
  const Outcome outcome = train("run", {"--restart"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step 4"));
  expect_every_step_once("run", 8);
  EXPECT_THAT(probes(), IsEmpty());
}

/// A relative path begins in the folder of each rank.
TEST_F(SharedDirectory, OfRanksInDifferentFolders) {
  for (const char* folder : {"a", "b"}) fs::create_directory(scratch() / folder);
  const fs::path file = scratch() / "clock";
  DrivenClock clock(file);
  Job job({"train", deck().string(), "--run.dir=run", "--progress=none", "--comm.heartbeat=1e6",
           "--comm.timeout=1e6", "--io.timeout=1e6"},
          {.environment = {clock.variable()},
           .wrapper = {"sh", "-c",
                       "cd " + scratch().string() + R"(/$([ $PMI_RANK = 0 ] && echo a || echo b); exec "$@")",
                       "sh"}});
  job.wait_until([&] { return !probes().empty() || !job.running(); });
  clock.advance(61);
  const Outcome outcome = job.wait();
  EXPECT_EQ(outcome.exit_code, usage) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr(fmt::format("; it looks in {0}/b/run, not in {0}/a/run", scratch().string())));
}

TEST_F(SharedDirectory, IsAsBeforeIfItCannotBeWritten) {
  const fs::path elsewhere = scratch() / "elsewhere";
  const std::string prefix = (elsewhere / ".mylos-shared-").string();
  const Outcome outcome = train(
      "run", {"--checkpoint.dir=" + elsewhere.string()},
      {.environment = {"LD_PRELOAD=" MYLOS_PRELOADED, fmt::format("MYLOS_FAIL={}:0:pwrite:1:28", prefix)}});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::io)) << outcome.output;
  EXPECT_THAT(probes(), IsEmpty());
  EXPECT_FALSE(fs::exists(run_path("run")));
  EXPECT_FALSE(fs::exists(elsewhere));
}

/// As on NFS: at first, rank 1 does not find what there is.
TEST_F(SharedDirectory, MayAppearLate) {
  for (const fs::path& place : {run_path("run"), run_path("run") / "checkpoints"}) {
    fs::remove_all(run_path("run"));
    const fs::path prefix = place / ".mylos-shared-";
    const Outcome outcome =
        train("run", {},
              {.environment = {"LD_PRELOAD=" MYLOS_PRELOADED,
                               fmt::format("MYLOS_FAIL={}:1:open:1:2", prefix.string())}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, "failing call: open 1 on " + prefix.string()), 1) << outcome.output;
  }
}

/// Rank 1 looks again once the disk that hides the directory is gone.
TEST_F(SharedDirectory, MayBeMountedLate) {
  if (!may_mount()) GTEST_SKIP() << "this user may not mount anything";
  const fs::path disk = scratch() / "disk";
  fs::create_directory(disk);
  const std::string release = (scratch() / "release").string();
  Job job(train_arguments("disk/a"),
          on_its_own_node(
              fmt::format("{} && {{ (until [ -e {} -o ! -e {} ]; do sleep 0.05; done; umount -l {}) & }}",
                          private_disk(disk), release, deck().string(), disk.string())));
  job.wait_until([&] { return !probes().empty(); });
  spill(scratch() / "release", "");
  const Outcome outcome = job.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(fs::exists(disk / "a" / "report.html"));
  EXPECT_THAT(probes(), IsEmpty());
}

TEST_F(SharedDirectory, MustBeWritableOnEveryNode) {
  if (!may_mount()) GTEST_SKIP() << "this user may not mount anything";
  const std::string run = run_path("run").string();
  fs::create_directory(run);
  const Outcome outcome = train(
      "run", {}, on_its_own_node("mount --bind " + run + " " + run + " && mount -o remount,ro,bind " + run));
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::io)) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("mylos: rank 1: run.dir \"" + run +
                                            "\" cannot be written on [^ ]+: Read-only file system"));
  EXPECT_TRUE(fs::is_empty(run));
}

TEST_F(SharedDirectory, LosesWhatAKilledRunHasLeftToLookFor) {
  const fs::path elsewhere = scratch() / "elsewhere";
  const std::string name = ".mylos-shared-0123456789abcdef";
  for (const fs::path& directory : {run_path("run"), run_path("run") / "checkpoints", elsewhere}) {
    fs::create_directories(directory);
    spill(directory / name, "x");
  }
  const Outcome outcome = train("run", {"--checkpoint.dir=" + elsewhere.string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(probes(), IsEmpty());
  expect_loads("run", 8);
  spill(run_path("run") / name, "x");
  EXPECT_EQ(train("run", {"--restart"}, {.ranks = 1}).exit_code, 0);
  EXPECT_THAT(probes(), IsEmpty());
}

TEST_F(SharedDirectory, IsAsBeforeIfASignalEndsTheWait) {
  if (!may_mount()) GTEST_SKIP() << "this user may not mount anything";
  const fs::path disk = scratch() / "disk";
  fs::create_directory(disk);
  Job job(train_arguments("disk/a"), on_its_own_node(private_disk(disk)));
  job.wait_until([&] { return !probes().empty(); });
  job.wait_until([&] { return handles(job.rank(1), SIGTERM); });  // rank 0 writes without waiting for rank 1
  ::kill(job.rank(1), SIGTERM);
  const Outcome outcome = job.wait();
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::preempted)) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("mylos: stopped by a signal"));
  EXPECT_TRUE(fs::is_empty(disk));
}

}  // namespace
}  // namespace mylos::test
