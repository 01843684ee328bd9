// SPDX-License-Identifier: BSD-3-Clause
// PackedWeights: copies of weights in the blocked layouts that oneDNN multiplies fastest.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include <dnnl.hpp>

#include "core/memory/device_buffer.hpp"
#include "core/ops/matrix_ref.hpp"

namespace mylos::compute_onednn {

/// A copy is made at a weight's first use and renewed when its version has changed, so micro-batches and the
/// products of one step share it. Each use of a weight (forward and dX see it transposed) has a copy.
class PackedWeights {
 public:
  PackedWeights(ComputeBackend& memory, MemoryLedger* ledger, const dnnl::engine& engine);

  /// `weight` (rows, columns) as of `version`, laid out as `layout`. Every call for one weight names one
  /// layout.
  void* packed(const MatrixRef& weight, const dnnl::memory::desc& plain, const dnnl::memory::desc& layout,
               std::uint64_t version, dnnl::stream& stream);

  /// Gives up the copies of weights that lie in [begin, begin + bytes): that memory is about to be freed.
  void forget(const void* begin, std::size_t bytes);

 private:
  struct Key {
    const void* data;
    dnnl_dim_t rows, columns;  // with the strides they tell a weight from its transpose
    std::int64_t row, column;
    auto operator<=>(const Key&) const = default;
  };
  struct Copy {
    dnnl::reorder reorder;
    dnnl::memory from, to;
    DeviceBuffer memory;        // of `to`
    std::uint64_t version = 0;  // none
  };
  using Copies = std::map<Key, Copy>;

  Copy make(const MatrixRef& weight, const dnnl::memory::desc& plain, const dnnl::memory::desc& layout);

  ComputeBackend& memory_;
  MemoryLedger* ledger_;
  dnnl::engine engine_;
  Copies copies_;
};

}  // namespace mylos::compute_onednn
