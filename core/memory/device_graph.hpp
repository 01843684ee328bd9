// SPDX-License-Identifier: BSD-3-Clause
// DeviceGraph: part of a step that is recorded once and then queued as a whole.
#pragma once

#include <functional>

#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Move-only. `work` must queue the same operations in every call; values that change must lie in device
/// memory.
class DeviceGraph {
 public:
  explicit DeviceGraph(ComputeBackend& backend) : backend_(&backend) {}
  DeviceGraph(DeviceGraph&&) = default;
  DeviceGraph& operator=(DeviceGraph&&) = delete;

  /// Queues the operations of `work()`. Calls `work` only to record them: the first time, and again after
  /// device memory was deallocated.
  void queue(const auto& work) {
    if (graph_.handle != nullptr && backend_->launch(graph_)) return;
    if (graph_.handle != nullptr) backend_->synchronize();  // reports errors, which a destructor cannot
    graph_ = {};
    graph_ = backend_->capture(std::cref(work));
    require(backend_->launch(graph_), "nothing was deallocated while work was recorded");
  }

 private:
  ComputeBackend* backend_;
  Graph graph_;
};

}  // namespace mylos
