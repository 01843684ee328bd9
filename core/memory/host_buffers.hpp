// SPDX-License-Identifier: BSD-3-Clause
// HostBuffers: host memory in which a communication backend reads and writes the buffers of one operation.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/tensor.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Gives each buffer as host memory: the buffer itself, or memory that stands for it while the operation is
/// under way. Buffers are contiguous.
class HostBuffers {
 public:
  /// `device` is the backend whose memory the host cannot use as it is; null where it can.
  explicit HostBuffers(ComputeBackend* device) : device_(device) {}

  /// Where the host reads `buffer`.
  const std::byte* read(TensorRef buffer);
  /// Where the host writes `buffer`; `apart` where it must not be the buffer itself.
  std::byte* write(TensorRef buffer, bool apart = false);
  std::byte* read_write(TensorRef buffer);

  /// Completes the operation: what was written apart goes to its buffer.
  void copy_back();

 private:
  struct Staged {
    std::unique_ptr<std::byte[]> host;
    void* buffer;
    std::size_t bytes;
    bool copy_back;
  };

  Staged& stage(TensorRef buffer, bool copy_back);
  std::byte* load(const Staged& staged);

  ComputeBackend* device_;
  std::vector<Staged> stages_;
};

}  // namespace mylos
