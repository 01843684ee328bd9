// SPDX-License-Identifier: BSD-3-Clause
// DeviceBuffer: device memory, charged to the ledger for as long as it lives.
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
  /// A window of `communicator` if it has a kind of memory of its own. Collective.
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

  ComputeBackend* backend_ = nullptr;  // that frees it; null if it is the window's
  Window window_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryCharge charge_;
};

}  // namespace mylos
