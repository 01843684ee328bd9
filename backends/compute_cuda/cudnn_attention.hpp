// SPDX-License-Identifier: BSD-3-Clause
// CudnnAttention: cuDNN's flash attention, one graph for each Key.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/memory/scratch_buffer.hpp"
#include "core/plugin.hpp"

struct cudnnContext;  // what a cudnnHandle_t points to

namespace mylos::compute_cuda {

/// Graphs are built on first use and kept. They share one workspace of the largest size needed, because the
/// queue runs one graph after another. Gradients are added up in a fixed order.
class CudnnAttention {
 public:
  CudnnAttention(ComputeBackend& memory, MemoryLedger* ledger);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// Whether to try cuDNN. Requires non-empty tensors of bf16 or fp16, heads of up to 128 elements in
  /// multiples of eight, more than one position, as many queries as keys, the first query at the first key,
  /// and no dropout (which must use mylos' own generator).
  static bool supports(const AttentionForward& args);

  /// Return false if this version of cuDNN does not support the graph after all; this is reported on stderr
  /// once per Key.
  bool forward(const AttentionForward& args);
  bool backward(const AttentionBackward& args);

  /// The most bytes of workspace for this attention; 0 if cuDNN does not compute it. Before cuDNN 9.25, a
  /// gradient of keys and values in a fixed order keeps the gradients of all weights, (batch, heads,
  /// positions, positions).
  static std::size_t workspace_bytes(const PlannedAttention& attention);

  /// cuDNN's version, such as "9.13.0".
  static std::string version();

 private:
  struct Graph;
  /// The properties that select a graph. `shape` is (batch, heads, positions, dimension). `strides` holds,
  /// for each tensor except lse, every stride except that of the last dimension, which is 1.
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

  ComputeBackend& memory_;
  std::shared_ptr<cudnnContext> handle_;
  std::map<Key, Graph> graphs_;
  ScratchBuffer workspace_;
};

}  // namespace mylos::compute_cuda
