// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/stop_signals.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/error.hpp"

namespace mylos {

namespace {

volatile std::sig_atomic_t first_signal = 0;
volatile std::sig_atomic_t waits = -1;  // the descriptor that ends waits
std::chrono::nanoseconds first_time{0};

std::chrono::nanoseconds now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

extern "C" void on_signal(int signal) {
  if (first_signal == 0) {
    first_time = now();
    first_signal = signal;
    const std::uint64_t one = 1;
    const int error = errno;
    static_cast<void>(!::write(waits, &one, sizeof one));
    errno = error;
  } else if (ends_at_once(signal, now() - first_time)) {
    _exit(static_cast<int>(ExitCode::preempted));
  }
}

// A signal's frame contains all vector registers: several kilobytes with AVX-512.
std::size_t stack_size() {
  return static_cast<std::size_t>(std::max(sysconf(_SC_SIGSTKSZ), 64L << 10));
}

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigfillset(&action.sa_mask);  // no signal interrupts a handler
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGXCPU}) {
    struct sigaction present {};
    sigaction(signal, nullptr, &present);
    // With nohup, the end of the terminal's session is no reason to stop.
    if (signal == SIGHUP && present.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace

bool ends_at_once(int signal, std::chrono::nanoseconds after_first) {
  return signal == SIGINT && after_first > std::chrono::seconds(1);
}

StopSignals::StopSignals() : stack_(stack_size()), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  waits = event_.get();
  end_waits_with(event_.get());
  const stack_t stack{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
  sigaltstack(&stack, &before_);
  install(on_signal);
  const std::uint64_t one = 1;
  if (first_signal != 0) static_cast<void>(!::write(waits, &one, sizeof one));  // in an earlier object's time
}

StopSignals::~StopSignals() {
  install(SIG_DFL);
  end_waits_with(-1);
  waits = -1;
  sigaltstack(&before_, nullptr);
}

int StopSignals::received() const {
  return first_signal;
}

}  // namespace mylos
