// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/stop_signals.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <ucontext.h>

#include <gtest/gtest.h>

namespace mylos {
namespace {

TEST(StopSignals, ReportTheFirstSignal) {
  const StopSignals signals;
  EXPECT_EQ(signals.received(), 0);
  std::raise(SIGTERM);
  EXPECT_EQ(signals.received(), SIGTERM);
  std::raise(SIGUSR1);
  EXPECT_EQ(signals.received(), SIGTERM);
}

TEST(StopSignals, EndTheProcessAtOnceOnlyForASecondInterruptThatTheLauncherDidNotCopy) {
  using namespace std::chrono_literals;
  EXPECT_FALSE(ends_at_once(SIGINT, 1s));
  EXPECT_TRUE(ends_at_once(SIGINT, 1001ms));
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1}) EXPECT_FALSE(ends_at_once(signal, 1h));
}

TEST(StopSignals, LeaveAnIgnoredHangupIgnored) {
  const auto is_ignored = [](int signal) {
    struct sigaction present {};
    sigaction(signal, nullptr, &present);
    return present.sa_handler == SIG_IGN;
  };
  std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals;
    EXPECT_TRUE(is_ignored(SIGHUP));
    EXPECT_FALSE(is_ignored(SIGTERM));
  }
  EXPECT_TRUE(is_ignored(SIGHUP));
  std::signal(SIGHUP, SIG_DFL);
}

void raise_usr1() {
  std::raise(SIGUSR1);
}

// A signal's stack frame, with the vector registers, is larger than a kilobyte; the frame of the call to
// raise is smaller.
TEST(StopSignals, LeaveTheInterruptedStackAlone) {
  constexpr std::byte paint{0xA5};
  constexpr std::ptrdiff_t call_bytes = 1024;
  alignas(64) static std::array<std::byte, std::size_t{128} << 10> stack;
  stack.fill(paint);
  const StopSignals signals;
  std::raise(0);  // the dynamic linker resolves raise on this stack, not on the painted one

  ucontext_t caller{};
  ucontext_t callee{};
  getcontext(&callee);
  callee.uc_stack.ss_sp = stack.data();
  callee.uc_stack.ss_size = stack.size();
  callee.uc_link = &caller;
  makecontext(&callee, raise_usr1, 0);
  swapcontext(&caller, &callee);

  const auto* const lowest = std::ranges::find_if(stack, [&](std::byte byte) { return byte != paint; });
  EXPECT_LT(stack.end() - lowest, call_bytes);
}

}  // namespace
}  // namespace mylos
