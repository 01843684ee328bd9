// SPDX-License-Identifier: BSD-3-Clause
// ComputeBackend: a device's memory, queue and operations.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/allocation.hpp"
#include "core/base/error.hpp"
#include "core/ops/operation_table.hpp"

namespace mylos {

/// A point in the queued work; the last copy of the handle frees it.
struct Event {
  std::shared_ptr<void> handle;
};

/// Recorded work that can be queued as a whole, any number of times. The last copy of the handle frees it
/// after the device has completed all its launches.
struct Graph {
  std::shared_ptr<void> handle;
};

/// A device: its memory, its one queue and its operations. Work runs in the order in which it is queued.
/// Callers may rely on a function to wait for queued work only if its comment says so.
class ComputeBackend {
 public:
  /// Starts with the operations in `below`, usually those of the backend below.
  explicit ComputeBackend(OperationTable below = {}) : operations_(std::move(below)) {}
  ComputeBackend(const ComputeBackend&) = delete;
  ComputeBackend& operator=(const ComputeBackend&) = delete;
  virtual ~ComputeBackend() = default;

  /// Queues an operation.
  void run(const auto& op) { operations_.run(op); }
  const OperationTable& operations() const { return operations_; }

  /// Returns library, version, device and threads in words. A restart reports any change of this text.
  virtual std::string description() const = 0;

  /// Allocates 64-byte aligned device memory, first touched by the threads that will use it. Throws
  /// ExitCode::internal if memory runs out. Does not charge the memory ledger: callers use DeviceBuffer,
  /// which does.
  virtual Allocation allocate(std::size_t bytes, const char* label) = 0;
  /// Allocates host memory that the device can copy from and to while the host continues: page-locked if the
  /// device is a GPU.
  virtual Allocation allocate_host(std::size_t bytes) = 0;
  /// Queue copies between host and device memory, or within device memory. The host memory may be reused
  /// after `synchronize`, or after `host_wait` for an event recorded after the copy.
  virtual void copy_to_device(const void* host, void* device, std::size_t bytes) = 0;
  virtual void copy_to_host(const void* device, void* host, std::size_t bytes) = 0;
  virtual void copy(const void* from, void* to, std::size_t bytes) = 0;
  /// Returns whether the host may read and write device memory directly.
  virtual bool host_accessible() const = 0;

  /// Returns once all queued work is done.
  virtual void synchronize() = 0;
  virtual Event create_event() = 0;
  virtual void record(const Event& event) = 0;
  /// Returns once the device has reached the point at which `event` was last recorded; immediately if `event`
  /// was never recorded.
  virtual void host_wait(const Event& event) = 0;
  /// Returns the device time between two events, which the device must have reached.
  virtual double seconds_between(const Event& begin, const Event& end) = 0;
  /// Returns whether work can be recorded. The next two functions are called only if it can.
  virtual bool can_capture() const { return false; }
  /// Records the work that `work` queues instead of running it. `work` must not wait for the device, nor
  /// allocate or deallocate its memory. If `work` throws, the exception is passed on and nothing is recorded.
  virtual Graph capture(const std::function<void()>& /*work*/) {
    fail(ExitCode::internal, "{} cannot record graphs", description());
  }
  /// Queues the recorded work with its recorded arguments. If any device memory was deallocated after the
  /// recording, the work may depend on it, so `launch` queues nothing and returns false.
  virtual bool launch(const Graph& /*graph*/) { return false; }
  /// Makes profilers show the work that the host queues until `end_range` under `name`, a string literal.
  /// Ranges nest.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;
  /// Returns the bytes of device memory in use by all processes, or 0 if the backend cannot tell.
  virtual std::size_t device_bytes_in_use() const { return 0; }
  /// Returns the queue in the form that the device's libraries take: a cudaStream_t, or null without CUDA.
  virtual void* native_stream() { return nullptr; }

 protected:
  /// Puts the kernels of `self` on top of the table; see OperationTable.
  void add_operations(auto operations, auto& self, const char* backend) {
    operations_.add(operations, self, backend);
  }

 private:
  OperationTable operations_;
};

}  // namespace mylos
