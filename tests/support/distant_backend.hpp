// SPDX-License-Identifier: BSD-3-Clause
// DistantBackend: computes with the backend below it, but behaves like a GPU: work runs late, and on separate
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "core/ops/forwarding_backend.hpp"

namespace mylos {

/// A device whose memory only queued work may touch. Queued work runs only when the host waits, and only up
/// to the work that the host waits for. If the host itself touches the memory, it gets SIGSEGV; if it does
/// not wait, it finds old results.
class DistantDevice {
 public:
  DistantDevice() = default;
  ~DistantDevice();
  DistantDevice(const DistantDevice&) = delete;
  DistantDevice& operator=(const DistantDevice&) = delete;

  /// The deleter waits for all work, which may use the memory, before it frees the memory.
  Allocation allocate(std::size_t bytes);

  /// Queues work after all earlier work; returns its number. During a capture, records it and returns 0.
  std::uint64_t queue(std::function<void()> work);
  /// Returns what `work` would queue, without queueing it.
  std::vector<std::function<void()>> capture(const std::function<void()>& work);
  int num_captures() const { return num_captures_; }
  int num_deallocations() const { return num_deallocations_; }
  /// Runs the queued work up to number `last`.
  void wait(std::uint64_t last);
  void wait_for_all() { wait(num_queued_); }
  bool has_done(std::uint64_t number) const { return number <= num_done_; }

  /// Waits that found work to do.
  int num_waits() const { return num_waits_; }
  /// Waits that emptied the queue: the device is idle until the host queues more.
  int num_idle() const { return num_idle_; }

 private:
  void protect(int rights) const;
  void forbid_while_capturing(const char* what) const;

  std::map<void*, std::size_t> sizes_;
  std::deque<std::function<void()>> work_;
  std::vector<std::function<void()>>* recorded_ = nullptr;  // null except during a capture
  std::uint64_t num_queued_ = 0;
  std::uint64_t num_done_ = 0;
  int num_captures_ = 0;
  int num_deallocations_ = 0;
  int num_waits_ = 0;
  int num_idle_ = 0;
};

/// Queues each operation that the backend below has a kernel for.
class DistantOperations {
 public:
  DistantOperations(const OperationTable& next, DistantDevice& device) : next_(next), device_(device) {}

  template <class Op>
  bool run(const Op& op) {
    if (!next_.has<Op>()) return false;
    device_.queue([=, this] { next_.run(op); });
    return true;
  }

 private:
  const OperationTable& next_;
  DistantDevice& device_;
};

/// Copies are queued too: they read and write host memory only when they run.
class DistantBackend : public ForwardingBackend {
 public:
  explicit DistantBackend(ComputeBackend& next)
      : ForwardingBackend(next, OperationTable()), operations_(next.operations(), device_) {
    add_operations(Operations(), operations_, "distant");
  }

  const DistantDevice& device() const { return device_; }

  std::string description() const override { return "a distant device over " + next().description(); }
  Allocation allocate(std::size_t bytes, const char* /*label*/) override { return device_.allocate(bytes); }
  void copy_to_device(const void* host, void* device, std::size_t bytes) override {
    copy(host, device, bytes);
  }
  void copy_to_host(const void* device, void* host, std::size_t bytes) override { copy(device, host, bytes); }
  void copy(const void* from, void* to, std::size_t bytes) override;
  bool host_accessible() const override { return false; }

  void synchronize() override { device_.wait_for_all(); }
  Event create_event() override;
  void record(const Event& event) override;
  void host_wait(const Event& event) override;
  double seconds_between(const Event& begin, const Event& end) override;
  bool can_capture() const override { return true; }
  Graph capture(const std::function<void()>& work) override;
  bool launch(const Graph& graph) override;

 private:
  DistantDevice device_;
  DistantOperations operations_;
};

}  // namespace mylos
