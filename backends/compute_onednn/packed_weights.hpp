// SPDX-License-Identifier: BSD-3-Clause
// PackedWeights: copies of weights in the blocked layouts that oneDNN multiplies fastest.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include <dnnl.hpp>

#include "core/memory/device_buffer.hpp"
#include "core/ops/matrix_view.hpp"

namespace mylos::compute_onednn {

/// A copy is made at a weight's first use and renewed when the weight's version has changed, so the
/// micro-batches of a step share it. The forward product and the input's gradient, which multiplies by the
/// transposed weight, do not share a copy.
class PackedWeights {
 public:
  PackedWeights(ComputeBackend& memory, MemoryLedger* ledger, const dnnl::engine& engine);

  /// The copy of `weight` (rows, columns) at `version` in `layout`. All calls for one weight in one
  /// orientation must name the same layout.
  void* packed(const MatrixView& weight, const dnnl::memory::desc& plain, const dnnl::memory::desc& layout,
               std::uint64_t version, dnnl::stream& stream);

  /// Drops the copies of weights that lie in [begin, begin + bytes), because that memory is about to be
  /// freed.
  void forget(const void* begin, std::size_t bytes);

 private:
  struct Key {
    const void* data;
    dnnl_dim_t rows, columns;  // with the strides, they distinguish a weight from its transpose
    std::int64_t row, column;
    auto operator<=>(const Key&) const = default;
  };
  struct Copy {
    dnnl::reorder reorder;
    dnnl::memory from, to;
    DeviceBuffer memory;        // of `to`
    std::uint64_t version = 0;  // 0: not yet copied
  };
  using Copies = std::map<Key, Copy>;

  Copy make(const MatrixView& weight, const dnnl::memory::desc& plain, const dnnl::memory::desc& layout);

  ComputeBackend& memory_;
  MemoryLedger* ledger_;
  dnnl::engine engine_;
  Copies copies_;
};

}  // namespace mylos::compute_onednn
