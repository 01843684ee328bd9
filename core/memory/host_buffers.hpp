// SPDX-License-Identifier: BSD-3-Clause
// HostBuffers: host memory in which a communication backend reads and writes the buffers of one operation.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/tensor.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Returns whether the two buffers have bytes in common.
bool overlap(TensorRef a, TensorRef b);

/// Provides each buffer as host memory: the buffer itself, or a stand-in while the operation is in flight.
/// Buffers are contiguous.
class HostBuffers {
 public:
  /// The buffers lie in the memory of `compute`, or in host memory if `compute` is null.
  explicit HostBuffers(ComputeBackend* compute)
      : device_(compute != nullptr && !compute->host_accessible() ? compute : nullptr) {}

  /// Returns where the host can read the content of `buffer`.
  const std::byte* read(TensorRef buffer) { return host(buffer, true, false, false); }
  /// Returns where the host can write `buffer`: never the buffer itself if `apart` is set.
  std::byte* write(TensorRef buffer, bool apart = false) { return host(buffer, false, true, apart); }
  std::byte* read_write(TensorRef buffer) { return host(buffer, true, true, false); }

  /// Completes the operation: copies the written stand-ins back to their buffers.
  void copy_back();

 private:
  struct Staged {
    std::unique_ptr<std::byte[]> host;
    void* buffer;
    std::size_t bytes;
    bool copy_back;
  };

  std::byte* host(const TensorRef& buffer, bool is_read, bool is_written, bool apart);

  ComputeBackend* device_;  // if the host cannot access its memory, else null
  std::vector<Staged> stages_;
};

}  // namespace mylos
