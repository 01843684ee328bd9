// SPDX-License-Identifier: BSD-3-Clause
// PinnedBuffer: host memory that the device copies to, page-locked if the device is a GPU, charged to the
// ledger.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/memory/memory_charge.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Maps its pages at construction, so that no copy waits for page faults.
class PinnedBuffer {
 public:
  PinnedBuffer(ComputeBackend& backend, MemoryLedger& ledger, MemoryCategory category, std::size_t bytes)
      : memory_(backend.allocate_host(bytes)), charge_(&ledger, category, bytes) {
    std::memset(memory_.get(), 0, bytes);
  }

  void* data() const { return memory_.get(); }

 private:
  Allocation memory_;
  MemoryCharge charge_;
};

}  // namespace mylos
