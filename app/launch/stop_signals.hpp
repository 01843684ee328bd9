// SPDX-License-Identifier: BSD-3-Clause
// StopSignals: notes SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGXCPU, which ask a command to end early, and ends
// its waits.
#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <vector>

#include "io/file_util.hpp"

namespace mylos {

/// Returns whether `signal`, received `after_first` after the first signal, ends the process immediately.
/// Only Ctrl-C (SIGINT) does, more than a second after the first signal: one Ctrl-C may arrive twice, from
/// the terminal and from the launcher. The other signals may come from batch systems, which send one well
/// before the time limit and a second one when the limit is reached. Async-signal-safe.
bool ends_at_once(int signal, std::chrono::nanoseconds after_first);

/// Installs the handlers for its lifetime, except for SIGHUP if it is ignored (nohup). A process has at most
/// one such object. The main thread creates it, after MPI has started if MPI is used, because MPI may handle
/// some of these signals itself. On the main thread, which Linux prefers for signals to a process, the
/// handlers run on a stack of their own: compute kernels generated at run time may keep data below the stack
/// pointer, or may point the stack pointer into the heap (as oneDNN 2.6's fp32 GEMM does); in both cases a
/// signal's frame would overwrite data.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns the first signal received, or 0.
  int received() const;

 private:
  std::vector<std::byte> stack_;
  FileDescriptor event_;  // can be read once a signal was received; see `wait_until_ready`
  stack_t before_{};
};

}  // namespace mylos
