// SPDX-License-Identifier: BSD-3-Clause
// StopSignals: SIGTERM, SIGINT, SIGHUP and SIGUSR1 ask the run to end with a checkpoint.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace mylos {

/// Whether `signal`, received `after_first` after the first one, ends the process at once: a second Ctrl-C
/// does. Launchers deliver a Ctrl-C twice (to the group and to each rank), so repeats within a second count
/// as one. The other signals come from batch systems, which send one well before the time limit and one at
/// it. Async-signal-safe.
bool ends_at_once(int signal, std::chrono::nanoseconds after_first);

/// Installs the handlers while it lives. There is one per process, made by the main thread after MPI has
/// started, since MPI may have taken one of the signals. The handlers run on their own stack: kernels
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
