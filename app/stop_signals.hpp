// SPDX-License-Identifier: BSD-3-Clause
// StopSignals: SIGTERM, SIGINT and SIGUSR1 ask the run to end with a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mylos {

/// Whether `signal`, which came `seconds` after the first one, ends the process at once. Launchers deliver
/// one signal twice (to the group and to each rank): repeats within a second are one. Async-signal-safe.
bool ends_at_once(int signal, std::int64_t seconds);

/// Installs the handlers while it lives; one per process, made by the main thread. A second SIGINT or SIGTERM
/// ends the process at once. The handlers run on a stack of their own: kernels generated at run time may keep
/// data below the stack pointer or point it into the heap (oneDNN 2.6's fp32 GEMM does), where a signal's
/// frame would overwrite what is not its own.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The first signal that came, or 0.
  int received() const;

 private:
  std::vector<std::byte> stack_;
};

}  // namespace mylos
