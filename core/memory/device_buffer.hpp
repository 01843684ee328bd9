// SPDX-License-Identifier: BSD-3-Clause
// DeviceBuffer: device memory, charged to the ledger during its lifetime.
#pragma once

#include <cstddef>
#include <utility>

#include "core/communicator.hpp"
#include "core/memory/memory_charge.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Move-only. Empty after default construction and after a move.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// `ledger` outlives this; null charges nothing.
  DeviceBuffer(ComputeBackend& backend, MemoryLedger* ledger, MemoryCategory category, std::size_t bytes,
               const char* label)
      : backend_(&backend),
        data_(backend.allocate(bytes, label)),
        bytes_(bytes),
        charge_(ledger, category, bytes) {}
  DeviceBuffer(ComputeBackend& backend, MemoryLedger& ledger, MemoryCategory category, std::size_t bytes,
               const char* label)
      : DeviceBuffer(backend, &ledger, category, bytes, label) {}
  /// Takes a window of `communicator` if that has its own kind of memory, else device memory. Collective.
  DeviceBuffer(ComputeBackend& backend, MemoryLedger& ledger, MemoryCategory category, std::size_t bytes,
               const char* label, Communicator& communicator)
      : window_(communicator.allocate(bytes)), data_(window_.data()), bytes_(bytes) {
    if (data_ == nullptr) {
      backend_ = &backend;
      data_ = backend.allocate(bytes, label);
    }
    charge_ = MemoryCharge(&ledger, category, bytes);
  }
  ~DeviceBuffer() {
    if (backend_ != nullptr) backend_->deallocate(data_);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer taken(std::move(other));
    swap(taken);
    return *this;
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(window_, other.window_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(charge_, other.charge_);
  }

  ComputeBackend* backend_ = nullptr;  // frees the memory; null if the window does
  Window window_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryCharge charge_;
};

}  // namespace mylos
