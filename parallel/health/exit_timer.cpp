// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/exit_timer.hpp"

#include <csignal>
#include <ctime>
#include <optional>

namespace mylos {

namespace {

std::optional<timer_t> create_timer() {
  sigevent kill{};
  kill.sigev_notify = SIGEV_SIGNAL;
  kill.sigev_signo = SIGKILL;
  timer_t timer{};
  if (timer_create(CLOCK_MONOTONIC, &kill, &timer) != 0) return std::nullopt;
  return timer;
}

}  // namespace

void kill_unless_ended_within(std::chrono::milliseconds patience) {
  static const std::optional<timer_t> timer = create_timer();
  if (!timer) return;
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(patience);
  itimerspec end{};
  end.it_value.tv_sec = whole.count();
  end.it_value.tv_nsec = std::chrono::nanoseconds(patience - whole).count();
  timer_settime(*timer, 0, &end, nullptr);
}

}  // namespace mylos
