// SPDX-License-Identifier: BSD-3-Clause
// How jobs end with stopped, killed or aborting ranks, and with stalled or mismatched collectives.
// failure_detector_test.cpp tests the limits and which rank reports.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "parallel/health/traffic.hpp"
#include "tests/support/outer_job.hpp"

namespace mylos {
namespace {

struct Outcome {
  std::string output;
  int exit_code = -1;
};

Outcome run_subject(const std::string& failure, int ranks, const std::string& backend = "mpi") {
  test::leave_outer_job();
  const std::string command =
      fmt::format("MYLOS_PLUGIN_PATH={0}/lib/mylos {0}/launch_here {1} {2} {3} {4} 2>&1",
                  std::getenv("MYLOS_BUILD"), ranks, MYLOS_WATCHDOG_SUBJECT, failure, backend);
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> chunk;
  while (std::fgets(chunk.data(), chunk.size(), pipe) != nullptr) outcome.output += chunk.data();
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

int occurrences(const std::string& text, const std::string& word) {
  int count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

void expect_one_report(const Outcome& outcome, const std::string& reason) {
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "mylos watchdog: "), 1) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "ended: " + reason), 1) << outcome.output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(occurrences(outcome.output, fmt::format("\nrank {} (pid ", rank)), 1) << outcome.output;
  }
}

TEST(Watchdog, ReportsAStoppedRank) {
  const Outcome outcome = run_subject("stop", 3);
  expect_one_report(outcome, "stopped rank 1: pid ");
  // Both survivors are in their seventh operation; the stopped rank has left its sixth.
  EXPECT_EQ(occurrences(outcome.output, "  #7 all_reduce [data] 4000 bytes"), 2) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "  #6 all_reduce [data] 4000 bytes"), 3) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "UNDER WAY"), 2) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "SILENT), step 5, forward"), 1) << outcome.output;
}

TEST(Watchdog, ReportsTheRanksOutsideAStalledCollective) {
  const Outcome outcome = run_subject("stall", 3);
  expect_one_report(outcome, "stalled collective: rank ");  // 0 or 2: whichever entered it first
  EXPECT_EQ(occurrences(outcome.output, "in all_reduce [data] 4000 bytes: 0, 2; in no operation: 1"), 2)
      << outcome.output;
}

TEST(Watchdog, EndsAJobWhenARankIsKilled) {
  const Outcome outcome = run_subject("kill", 3);
  EXPECT_NE(outcome.exit_code, 0);
}

TEST(Watchdog, EndsRanksThatWaitInSharedMemory) {
  expect_one_report(run_subject("stop", 3, "shm"), "stopped rank 1: pid ");
  const Outcome killed = run_subject("kill", 3, "shm");
  EXPECT_NE(killed.exit_code, 0);
  const Outcome aborted = run_subject("abort", 3, "shm");
  EXPECT_EQ(aborted.exit_code, static_cast<int>(ExitCode::io)) << aborted.output;
  EXPECT_EQ(occurrences(aborted.output, "cannot write"), 1) << aborted.output;
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
