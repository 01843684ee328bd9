// SPDX-License-Identifier: BSD-3-Clause
// DeviceBuffer: device memory, charged to the ledger during its lifetime.
#pragma once

#include <cstddef>

#include "core/communication/communicator.hpp"
#include "core/memory/memory_charge.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Move-only. Holds no memory after default construction or after a move.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// `backend` and `ledger` must outlive this object. If `ledger` is null, nothing is charged.
  DeviceBuffer(ComputeBackend& backend, MemoryLedger* ledger, MemoryCategory category, std::size_t bytes,
               const char* label)
      : memory_(backend.allocate(bytes, label)), charge_(ledger, category, bytes) {}
  DeviceBuffer(ComputeBackend& backend, MemoryLedger& ledger, MemoryCategory category, std::size_t bytes,
               const char* label)
      : DeviceBuffer(backend, &ledger, category, bytes, label) {}
  /// Takes a window of `communicator` if the communicator has its own kind of memory, else device memory.
  /// Collective.
  DeviceBuffer(ComputeBackend& backend, MemoryLedger& ledger, MemoryCategory category, std::size_t bytes,
               const char* label, Communicator& communicator)
      : memory_(communicator.allocate(bytes)) {
    if (memory_ == nullptr) memory_ = backend.allocate(bytes, label);
    charge_ = MemoryCharge(&ledger, category, bytes);
  }

  void* data() const { return memory_.get(); }
  std::size_t bytes() const { return charge_.bytes(); }

 private:
  Allocation memory_;
  MemoryCharge charge_;
};

}  // namespace mylos
