// SPDX-License-Identifier: BSD-3-Clause
// ScratchBuffer: device memory that operations use one after another.
#pragma once

#include <cstddef>

#include "core/memory/device_buffer.hpp"

namespace mylos {

/// As large as the largest request so far.
class ScratchBuffer {
 public:
  /// `ledger` may be null.
  ScratchBuffer(ComputeBackend& memory, MemoryLedger* ledger, const char* label)
      : memory_(memory), ledger_(ledger), label_(label) {}

  void* data() const { return buffer_.data(); }
  /// The content is lost if the memory grows.
  void reserve(std::size_t bytes) {
    if (bytes <= buffer_.bytes()) return;
    memory_.synchronize();
    buffer_ = {};
    buffer_ = DeviceBuffer(memory_, ledger_, MemoryCategory::workspace, bytes, label_);
  }

 private:
  ComputeBackend& memory_;
  MemoryLedger* ledger_;
  const char* label_;
  DeviceBuffer buffer_;
};

}  // namespace mylos
