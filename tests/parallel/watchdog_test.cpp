// SPDX-License-Identifier: BSD-3-Clause
// Stopped ranks, stalled and mismatched collectives: one report of all ranks, exit code 76, nothing left
// behind.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string>
#include <sys/wait.h>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "parallel/health/traffic.hpp"

namespace mylos {
namespace {

struct Outcome {
  std::string output;
  int exit_code = -1;
  double seconds = 0.0;
};

Outcome run_subject(const std::string& failure, int ranks, const std::string& backend = "mpi") {
  const std::string command =
      fmt::format("MYLOS_PLUGIN_PATH={}/lib/mylos {} -n {} {} {} {} 2>&1", std::getenv("MYLOS_BUILD"),
                  MYLOS_MPIEXEC, ranks, MYLOS_WATCHDOG_SUBJECT, failure, backend);
  const auto begin = std::chrono::steady_clock::now();
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> chunk;
  while (std::fgets(chunk.data(), chunk.size(), pipe) != nullptr) outcome.output += chunk.data();
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

int occurrences(const std::string& text, const std::string& word) {
  int count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

/// Other tests may be opening their recorders at this moment, so their files get the time to go.
void expect_nothing_left_behind() {
  const std::regex recorder_file("mylos-[0-9a-f]+-[0-9]+");
  bool left = true;
  for (int attempt = 0; attempt < 30 && left; ++attempt) {
    left = false;
    for (const char* folder : {"/dev/shm", "/tmp"}) {
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        left = left || std::regex_match(name, recorder_file);
      }
    }
    if (left) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_FALSE(left);
}

void expect_one_report(const Outcome& outcome, const std::string& reason) {
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  EXPECT_LT(outcome.seconds, 20.0);
  EXPECT_EQ(occurrences(outcome.output, "mylos watchdog: "), 1) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "ended: " + reason), 1) << outcome.output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(occurrences(outcome.output, fmt::format("\nrank {} (pid ", rank)), 1) << outcome.output;
  }
  expect_nothing_left_behind();
}

TEST(Watchdog, ReportsAStoppedRank) {
  const Outcome outcome = run_subject("stop", 3);
  expect_one_report(outcome, "stopped rank 1: pid ");
  // Both survivors are in their seventh operation, the stopped rank has left its sixth.
  EXPECT_EQ(occurrences(outcome.output, "  #7 all_reduce [data] 4000 bytes"), 2) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "  #6 all_reduce [data] 4000 bytes"), 3) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "UNDER WAY"), 2) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "SILENT), step 5, forward"), 1) << outcome.output;
}

TEST(Watchdog, ReportsWhoIsNotInAStalledCollective) {
  const Outcome outcome = run_subject("stall", 3);
  expect_one_report(outcome, "stalled collective: rank 0 has been in all_reduce [data] 4000 bytes");
  EXPECT_EQ(occurrences(outcome.output, "in all_reduce [data] 4000 bytes: 0, 2; in no operation: 1"), 2)
      << outcome.output;
}

TEST(Watchdog, LeavesALongHostPhaseAlone) {
  const Outcome outcome = run_subject("busy", 3);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.output, "");
  expect_nothing_left_behind();
}

TEST(Watchdog, LeavesAJobThatWasSuspendedAndContinuedAlone) {
  const Outcome outcome = run_subject("suspend_all", 3);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_GT(outcome.seconds, 4.0);
}

TEST(Watchdog, LeavesNothingBehindWhenARankIsKilled) {
  const Outcome outcome = run_subject("kill", 3);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_LT(outcome.seconds, 10.0);
  expect_nothing_left_behind();
}

TEST(Watchdog, EndsRanksThatWaitInSharedMemory) {
  expect_one_report(run_subject("stop", 3, "shm"), "stopped rank 1: pid ");
  const Outcome killed = run_subject("kill", 3, "shm");
  EXPECT_NE(killed.exit_code, 0);
  EXPECT_LT(killed.seconds, 10.0);
  const Outcome aborted = run_subject("abort", 3, "shm");
  EXPECT_EQ(aborted.exit_code, static_cast<int>(ExitCode::io)) << aborted.output;
  EXPECT_EQ(occurrences(aborted.output, "cannot write"), 1) << aborted.output;
  EXPECT_LT(aborted.seconds, 10.0);
  expect_nothing_left_behind();
}

TEST(Watchdog, DebugBuildsNameTheCallsOfAMismatchedCollective) {
  if (!calls_are_checked) GTEST_SKIP() << "calls are checked in debug builds";
  const Outcome outcome = run_subject("mismatch", 3);
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "mismatched collective on axis data:"), 1) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "rank 1: broadcast of 40 bytes of fp32"), 1) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "rank 2: all_reduce of 4000 bytes of fp32"), 1) << outcome.output;
}

}  // namespace
}  // namespace mylos
