// SPDX-License-Identifier: BSD-3-Clause
// CudnnAttention: cuDNN's flash attention, one graph for each shape.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/memory/device_buffer.hpp"

namespace mylos::compute_cuda {

/// Graphs are built on first use and kept; all share one workspace, which grows to the largest's, as the
/// queue runs one after another. Gradients are added up in a fixed order.
class CudnnAttention {
 public:
  CudnnAttention(ComputeBackend& memory, MemoryLedger* ledger);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// Whether to ask cuDNN: bf16 or fp16, heads of up to 128 elements by eights, more than one position,
  /// queries from the first key on, no dropout (whose generator must be mylos' own).
  static bool supports(const AttentionForward& args);

  /// False where this version of cuDNN does not take it after all; said once a shape on stderr.
  bool forward(const AttentionForward& args);
  bool backward(const AttentionBackward& args);

  /// cuDNN's version, as in "9.13.0".
  static std::string version();

 private:
  struct Graph;
  /// What tells graphs apart: batch, heads, positions, dimension, and of each tensor its strides but the
  /// last.
  struct Key {
    bool is_backward;
    DType dtype;
    float scale;
    std::array<std::int64_t, 4> shape;
    std::array<std::array<std::int64_t, 3>, 8> strides;
    auto operator<=>(const Key&) const = default;
  };

  Graph& find(const Key& key);
  Graph make(const Key& key) const;
  bool execute(const Key& key, const std::array<void*, 9>& tensors);
  void reserve(std::size_t bytes);

  struct Handle;

  ComputeBackend& memory_;
  MemoryLedger* ledger_;
  std::unique_ptr<Handle> handle_;
  std::map<Key, Graph> graphs_;
  DeviceBuffer workspace_;
};

}  // namespace mylos::compute_cuda
