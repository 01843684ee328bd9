// SPDX-License-Identifier: BSD-3-Clause
// TracedBackend: a backend whose operations and copies are recorded in a trace and watched.
#pragma once

#include <cstddef>

#include "core/ops/forwarding_backend.hpp"
#include "core/trace/trace.hpp"

namespace mylos {

/// Records every operation that a kernel of `next` takes, under the operation's name; linear layers are
/// recorded with the shape of their weights. A fused operation that is run as its separate parts is recorded
/// as those parts. Operations, copies, allocations (which touch their memory) and waits are WatchedCalls: the
/// watchdog finds a computation that never ends, also on a device that works later.
class TracedBackend final : public ForwardingBackend {
 public:
  /// `next` and `trace` must outlive this object.
  TracedBackend(ComputeBackend& next, Trace& trace);

  Allocation allocate(std::size_t bytes, const char* label) override;
  void copy_to_device(const void* host, void* device, std::size_t bytes) override;
  void copy_to_host(const void* device, void* host, std::size_t bytes) override;
  void copy(const void* from, void* to, std::size_t bytes) override;
  void synchronize() override;
  void host_wait(const Event& event) override;
  bool launch(const Graph& graph) override;

 private:
  /// Receives each operation before the kernels of `next`.
  struct Recorder {
    const OperationTable& next;
    Trace& trace;

    template <class Op>
    bool run(const Op& op);
  };

  Recorder recorder_;
};

}  // namespace mylos
