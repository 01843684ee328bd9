// SPDX-License-Identifier: BSD-3-Clause
// ComputeBackends: every usable compute backend of the build under test, for tests and benchmarks.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/plugin.hpp"

namespace mylos {

/// Names of the usable compute backends among `test_plugins`, the root "kokkos" first.
std::vector<std::string> compute_backend_names();

/// Each backend of `compute_backend_names()`, made with its default parameters: "kokkos", and the others
/// stacked on it. At most one object per process, because Kokkos can be initialised only once.
class ComputeBackends {
 public:
  explicit ComputeBackends(int num_threads);
  ~ComputeBackends();
  ComputeBackends(const ComputeBackends&) = delete;
  ComputeBackends& operator=(const ComputeBackends&) = delete;

  ComputeBackend& at(std::string_view name);
  const MemoryLedger& ledger() const { return ledger_; }

 private:
  ParamValues deck_;
  MemoryLedger ledger_;
  std::map<std::string, std::unique_ptr<ComputeBackend>, std::less<>> backends_;
};

}  // namespace mylos
