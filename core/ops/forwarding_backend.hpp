// SPDX-License-Identifier: BSD-3-Clause
// ForwardingBackend: the base class of a backend that adds kernels for some operations and leaves the rest to
// the backend below.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Provides the memory, queue and operations of `next`, which must outlive this object.
class ForwardingBackend : public ComputeBackend {
 public:
  explicit ForwardingBackend(ComputeBackend& next) : ForwardingBackend(next, next.operations()) {}

  std::string description() const override { return next_.description(); }

  Allocation allocate(std::size_t bytes, const char* label) override { return next_.allocate(bytes, label); }
  Allocation allocate_host(std::size_t bytes) override { return next_.allocate_host(bytes); }
  void copy_to_device(const void* host, void* device, std::size_t bytes) override {
    next_.copy_to_device(host, device, bytes);
  }
  void copy_to_host(const void* device, void* host, std::size_t bytes) override {
    next_.copy_to_host(device, host, bytes);
  }
  void copy(const void* from, void* to, std::size_t bytes) override { next_.copy(from, to, bytes); }
  bool host_accessible() const override { return next_.host_accessible(); }

  void synchronize() override { next_.synchronize(); }
  Event create_event() override { return next_.create_event(); }
  void record(const Event& event) override { next_.record(event); }
  void host_wait(const Event& event) override { next_.host_wait(event); }
  double seconds_between(const Event& begin, const Event& end) override {
    return next_.seconds_between(begin, end);
  }
  bool can_capture() const override { return next_.can_capture(); }
  Graph capture(const std::function<void()>& work) override { return next_.capture(work); }
  bool launch(const Graph& graph) override { return next_.launch(graph); }
  void begin_range(const char* name) override { next_.begin_range(name); }
  void end_range() override { next_.end_range(); }
  std::size_t device_bytes_in_use() const override { return next_.device_bytes_in_use(); }
  void* native_stream() override { return next_.native_stream(); }

 protected:
  /// Uses `operations` instead of the table of `next`.
  ForwardingBackend(ComputeBackend& next, OperationTable operations)
      : ComputeBackend(std::move(operations)), next_(next) {}

  ComputeBackend& next() { return next_; }
  const ComputeBackend& next() const { return next_; }

 private:
  ComputeBackend& next_;
};

}  // namespace mylos
