// SPDX-License-Identifier: BSD-3-Clause
// Workspace: device memory that the operations of the backend share. cuDNN has its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "core/memory/device_buffer.hpp"

namespace mylos::compute_cuda {

inline cudaStream_t cuda_stream(ComputeBackend& backend) {
  return static_cast<cudaStream_t>(backend.native_stream());
}

/// CUDA's libraries need a larger alignment than the 64 bytes of ComputeBackend::allocate.
inline constexpr std::size_t workspace_alignment = 256;
inline void* aligned_workspace(void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return reinterpret_cast<void*>((address + workspace_alignment - 1) / workspace_alignment *
                                 workspace_alignment);
}

/// Content lasts for one operation: the queue runs operations one after another.
class Workspace {
 public:
  static constexpr std::size_t bytes = std::size_t{32} << 20;  // NVIDIA's advice for cuBLAS on Hopper
  static constexpr std::size_t allocated = bytes + workspace_alignment;

  Workspace(ComputeBackend& memory, MemoryLedger* ledger)
      : buffer_(memory, ledger, MemoryCategory::workspace, allocated, "mylos::cuda::workspace") {}

  void* data() const { return aligned_workspace(buffer_.data()); }

 private:
  DeviceBuffer buffer_;
};

}  // namespace mylos::compute_cuda
