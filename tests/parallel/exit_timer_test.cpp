// SPDX-License-Identifier: BSD-3-Clause
// A process is killed if it does not end within its limit.
#include "parallel/health/exit_timer.hpp"

#include <csignal>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace mylos {
namespace {

using namespace std::chrono_literals;

/// The wait status of a process that runs `work`; it exits with 7 if `work` returns.
int status_of(const std::function<void()>& work) {
  const pid_t process = ::fork();
  if (process == 0) {
    work();
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  return status;
}

TEST(ExitTimer, KillsAStoppedProcess) {
  const int status = status_of([] {
    kill_unless_ended_within(50ms);
    ::raise(SIGSTOP);
  });
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST(ExitTimer, SparesAProcessThatEnds) {
  const int status = status_of([] { kill_unless_ended_within(1h); });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(ExitTimer, CountsFromTheLastCall) {
  const int status = status_of([] {
    kill_unless_ended_within(1h);
    kill_unless_ended_within(50ms);
    while (true) ::pause();
  });
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
}

}  // namespace
}  // namespace mylos
