// SPDX-License-Identifier: BSD-3-Clause
// StopSignals: SIGTERM, SIGINT, SIGHUP and SIGUSR1 ask the run to end with a checkpoint.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace mylos {

/// Whether `signal`, received `after_first` after the first signal, ends the process immediately: only a
/// Ctrl-C (SIGINT) does, more than a second after the first signal. Launchers deliver a Ctrl-C twice (to the
/// group and to each rank), so an earlier repeat does not count. The other signals come from batch systems,
/// which send one well before the time limit and a second one when it is reached. Async-signal-safe.
bool ends_at_once(int signal, std::chrono::nanoseconds after_first);

/// Installs the handlers for its lifetime. A process has at most one. The main thread makes it after MPI has
/// started, because MPI may handle some of these signals itself. The handlers run on their own stack: kernels
/// generated at run time may keep data below the stack pointer or point it into the heap (oneDNN 2.6's fp32
/// GEMM does), where a signal's frame would overwrite data.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The first signal received, or 0.
  int received() const;

 private:
  std::vector<std::byte> stack_;
};

}  // namespace mylos
