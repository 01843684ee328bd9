// SPDX-License-Identifier: BSD-3-Clause
// A process is killed, or exits, if it does not end within its limit.
#include "parallel/health/exit_timer.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <sys/socket.h>
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

TEST(ExitTimer, ExitsWithTheCode) {
  const int status = status_of([] {
    exit_unless_ended_within(50ms, 75);
    while (true) ::pause();
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

/// Even with a signal mask and a disposition that are inherited.
TEST(ExitTimer, ExitsIfTheSignalWasBlockedAndIgnored) {
  const int status = status_of([] {
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    ::signal(SIGALRM, SIG_IGN);
    exit_unless_ended_within(50ms, 75);
    while (true) ::pause();
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

/// The launcher learns that the process has left before the connection ends, and answers after another line.
TEST(ExitTimer, LeavesTheLauncherFirst) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::close(ends[0]);
    char line[64] = {};
    const ssize_t bytes = ::read(ends[1], line, sizeof line - 1);
    const bool is_request = bytes > 0 && std::string_view(line) == "cmd=finalize\n";
    static_cast<void>(::write(ends[1], "cmd=barrier_out\n", 16));
    const bool is_open = ::recv(ends[1], line, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
    static_cast<void>(::write(ends[1], "cmd=finalize_ack\n", 17));
    const bool has_ended = ::read(ends[1], line, 1) <= 0;
    ::_exit(is_request && is_open && has_ended ? 0 : 1);
  }
  ::close(ends[1]);
  const int status = status_of([&] {
    ::setenv("PMI_FD", std::to_string(ends[0]).c_str(), 1);
    exit_unless_ended_within(50ms, 75);
    while (true) ::pause();
  });
  ::close(ends[0]);
  EXPECT_EQ(WEXITSTATUS(status), 75);
  int seen = 0;
  ::waitpid(launcher, &seen, 0);
  EXPECT_EQ(seen, 0);
}

}  // namespace
}  // namespace mylos
