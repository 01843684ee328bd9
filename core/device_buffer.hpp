// SPDX-License-Identifier: BSD-3-Clause
// DeviceBuffer: owned device memory, charged to the ledger for as long as it lives.
#pragma once

#include <cstddef>
#include <utility>

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
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
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
    backend_->deallocate(data_);
    ledger_->release(category_, bytes_);
    data_ = nullptr;
  }

  ComputeBackend* backend_ = nullptr;
  MemoryLedger* ledger_ = nullptr;
  MemoryCategory category_ = MemoryCategory::workspace;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace mylos
