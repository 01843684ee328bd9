// SPDX-License-Identifier: BSD-3-Clause
// ProductScratch: memory that products use one after another.
#pragma once

#include <cstddef>

#include "core/memory/device_buffer.hpp"

namespace mylos::compute_onednn {

/// As large as the largest request so far.
class ProductScratch {
 public:
  /// `ledger` may be null.
  ProductScratch(ComputeBackend& memory, MemoryLedger* ledger, const char* label)
      : memory_(memory), ledger_(ledger), label_(label) {}

  void* data() const { return buffer_.data(); }
  /// The content is lost if the memory grows.
  void reserve(std::size_t bytes) {
    if (bytes <= buffer_.bytes()) return;
    buffer_ = {};
    buffer_ = DeviceBuffer(memory_, ledger_, MemoryCategory::workspace, bytes, label_);
  }

 private:
  ComputeBackend& memory_;
  MemoryLedger* ledger_;
  const char* label_;
  DeviceBuffer buffer_;
};

}  // namespace mylos::compute_onednn
