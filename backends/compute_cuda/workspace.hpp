// SPDX-License-Identifier: BSD-3-Clause
// Workspace: device memory that all operations of the backend share.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

#include "core/compute_backend.hpp"
#include "core/memory_ledger.hpp"

namespace mylos {

inline cudaStream_t cuda_stream(ComputeBackend& backend, Stream stream) {
  return static_cast<cudaStream_t>(backend.native_stream(stream));
}

/// Content lasts for one operation: operations that use it must be queued on one stream.
class Workspace {
 public:
  static constexpr std::size_t bytes = std::size_t{32} << 20;  // what NVIDIA advises for cuBLASLt on Hopper

  Workspace(ComputeBackend& memory, MemoryLedger* ledger)
      : memory_(memory), ledger_(ledger), data_(memory.allocate(bytes, "mylos::cuda::workspace")) {
    if (ledger_ != nullptr) ledger_->charge(MemoryCategory::workspace, bytes);
  }
  ~Workspace() {
    memory_.deallocate(data_);
    if (ledger_ != nullptr) ledger_->release(MemoryCategory::workspace, bytes);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return data_; }

 private:
  ComputeBackend& memory_;
  MemoryLedger* ledger_;
  void* data_;
};

}  // namespace mylos
