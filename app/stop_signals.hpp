// SPDX-License-Identifier: BSD-3-Clause
// StopSignals: SIGTERM, SIGINT and SIGUSR1 ask the run to end with a checkpoint.
#pragma once

namespace mylos {

/// Installs the handlers while it lives; one per process. A second SIGINT or SIGTERM ends the process at
/// once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The first signal that came, or 0.
  int received() const;
};

}  // namespace mylos
