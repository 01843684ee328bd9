// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/exit_timer.hpp"

#include <array>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <poll.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace mylos {

namespace {

std::optional<timer_t> create_timer(int signal) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = signal;
  timer_t timer{};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return std::nullopt;
  return timer;
}

void start(timer_t timer, std::chrono::milliseconds patience) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(patience);
  itimerspec end{};
  end.it_value.tv_sec = whole.count();
  end.it_value.tv_nsec = std::chrono::nanoseconds(patience - whole).count();
  timer_settime(timer, 0, &end, nullptr);
}

// For the handler.
int exit_code = 0;
int pmi = -1;             // the connection to the launcher
struct stat pmi_file {};  // which file that was

/// Ends the PMI connection of this process: version 1 of PMI's wire protocol, which MPICH speaks by default.
/// The launcher must not find the connection closed before it has answered.
void leave_pmi() {
  constexpr std::string_view request = "cmd=finalize\n";
  constexpr std::string_view answer = "finalize_ack";
  constexpr int longest_wait = 500;  // milliseconds
  if (pmi < 0 || ::write(pmi, request.data(), request.size()) < 0) return;
  std::array<char, 1024> buffer;
  pollfd readable{.fd = pmi, .events = POLLIN, .revents = 0};
  while (::poll(&readable, 1, longest_wait) > 0) {
    const ssize_t bytes = ::read(pmi, buffer.data(), buffer.size());
    if (bytes <= 0) return;
    // Before it, there may be the answer that MPI_Finalize waits for.
    if (std::string_view(buffer.data(), static_cast<std::size_t>(bytes)).find(answer) !=
        std::string_view::npos)
      return;
  }
}

extern "C" void on_end_of_patience(int /*signal*/) {
  leave_pmi();
  // A connection that closes may free another rank from its flush, which then enters the launcher's barrier:
  // Hydra would answer the ranks that have left, and fail. So connections stay until the timers of all ranks
  // are through.
  constexpr int longest_lag = 1000;  // milliseconds
  (void)::poll(nullptr, 0, longest_lag);
  _exit(exit_code);
}

}  // namespace

void kill_unless_ended_within(std::chrono::milliseconds patience) {
  static const std::optional<timer_t> timer = create_timer(SIGKILL);
  if (timer) start(*timer, patience);
}

void exit_unless_ended_within(std::chrono::milliseconds patience, int code) {
  exit_code = code;
  const char* descriptor = std::getenv("PMI_FD");
  if (descriptor != nullptr && ::fstat(std::atoi(descriptor), &pmi_file) == 0) pmi = std::atoi(descriptor);
  struct sigaction action {};
  action.sa_handler = on_end_of_patience;
  sigfillset(&action.sa_mask);
  sigaction(SIGALRM, &action, nullptr);
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  static const std::optional<timer_t> timer = create_timer(SIGALRM);
  if (timer) start(*timer, patience);
}

void leave_launcher() {
  struct stat now {};
  const bool is_open =
      pmi >= 0 && ::fstat(pmi, &now) == 0 && now.st_dev == pmi_file.st_dev && now.st_ino == pmi_file.st_ino;
  if (is_open) leave_pmi();
}

}  // namespace mylos
