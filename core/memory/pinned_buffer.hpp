// SPDX-License-Identifier: BSD-3-Clause
// PinnedBuffer: host memory that the device copies to, page-locked on a GPU, charged to the ledger.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/memory/memory_charge.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Its pages are mapped at construction, so that no copy waits for them.
class PinnedBuffer {
 public:
  PinnedBuffer(ComputeBackend& backend, MemoryLedger& ledger, MemoryCategory category, std::size_t bytes)
      : backend_(backend), memory_(backend.allocate_host(bytes)), charge_(&ledger, category, bytes) {
    std::memset(memory_, 0, bytes);
  }
  ~PinnedBuffer() { backend_.deallocate_host(memory_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  void* data() const { return memory_; }

 private:
  ComputeBackend& backend_;
  void* memory_;
  MemoryCharge charge_;
};

}  // namespace mylos
