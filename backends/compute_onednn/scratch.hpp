// SPDX-License-Identifier: BSD-3-Clause
// Scratch: memory that products use one after another.
#pragma once

#include <cstddef>

#include "core/compute_backend.hpp"
#include "core/memory_ledger.hpp"

namespace mylos {

/// As large as the largest wish so far, charged to the ledger (may be null).
class Scratch {
 public:
  Scratch(ComputeBackend& memory, MemoryLedger* ledger, const char* label)
      : memory_(memory), ledger_(ledger), label_(label) {}
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }
  /// Content is lost where it grows.
  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    release();
    data_ = memory_.allocate(bytes, label_);
    bytes_ = bytes;
    if (ledger_ != nullptr) ledger_->charge(MemoryCategory::workspace, bytes_);
  }

 private:
  void release() {
    if (data_ == nullptr) return;
    memory_.deallocate(data_);
    if (ledger_ != nullptr) ledger_->release(MemoryCategory::workspace, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

  ComputeBackend& memory_;
  MemoryLedger* ledger_;
  const char* label_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace mylos
