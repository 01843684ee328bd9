// SPDX-License-Identifier: BSD-3-Clause
// DeviceBuffer: device memory, charged to the ledger for as long as it lives.
#pragma once

#include <cstddef>
#include <utility>

#include "core/communicator.hpp"
#include "core/compute_backend.hpp"
#include "core/memory_ledger.hpp"

namespace mylos {

/// Move-only. Empty after default construction and after a move.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(ComputeBackend& backend, MemoryLedger& ledger, MemoryCategory category, std::size_t bytes,
               const char* label)
      : backend_(&backend), ledger_(&ledger), category_(category), bytes_(bytes) {
    data_ = backend.allocate(bytes, label);
    ledger.charge(category, bytes);
  }
  /// Memory of `communicator` where it has a kind of its own, which it then frees. Collective.
  DeviceBuffer(ComputeBackend& backend, MemoryLedger& ledger, MemoryCategory category, std::size_t bytes,
               const char* label, Communicator& communicator)
      : backend_(&backend), ledger_(&ledger), category_(category), bytes_(bytes) {
    data_ = communicator.allocate(bytes);
    is_borrowed_ = data_ != nullptr;
    if (!is_borrowed_) data_ = backend.allocate(bytes, label);
    ledger.charge(category, bytes);
  }
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      is_borrowed_ = other.is_borrowed_;
      backend_ = other.backend_;
      ledger_ = other.ledger_;
      category_ = other.category_;
    }
    return *this;
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void reset() {
    if (data_ == nullptr) return;
    if (!is_borrowed_) backend_->deallocate(data_);
    ledger_->release(category_, bytes_);
    data_ = nullptr;
  }

  ComputeBackend* backend_ = nullptr;
  MemoryLedger* ledger_ = nullptr;
  MemoryCategory category_ = MemoryCategory::workspace;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool is_borrowed_ = false;
};

}  // namespace mylos
