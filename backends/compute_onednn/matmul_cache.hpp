// SPDX-License-Identifier: BSD-3-Clause
// MatmulCache: runs oneDNN's matrix products, with the memory that they share.
#pragma once

#include <cstdint>

#include <dnnl.hpp>

#include "backends/compute_onednn/packed_weights.hpp"
#include "backends/compute_onednn/products.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/memory/scratch_buffer.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/ops/matrix_view.hpp"

namespace mylos::compute_onednn {

/// oneDNN's engine for the processor, limited to the instructions that MYLOS_CPU allows. In this backend,
/// only `cpu_engine` makes an engine and only `uses` queries oneDNN's instruction set, since oneDNN can be
/// limited only before its first use. Both throw ExitCode::usage if oneDNN cannot be limited.
dnnl::engine cpu_engine();
/// Whether oneDNN uses this instruction set.
bool uses(dnnl::cpu_isa set);

/// Primitives are made on first use and kept: a training step after the first makes none and grows no
/// scratchpad.
class MatmulCache {
 public:
  MatmulCache(ComputeBackend& memory, MemoryLedger* ledger);
  ~MatmulCache() = default;
  MatmulCache(const MatmulCache&) = delete;
  MatmulCache& operator=(const MatmulCache&) = delete;

  /// Whether oneDNN has vectorised kernels for this type on this machine.
  static bool supports(DType dtype);

  /// c (m, n) = (accumulate ? c : 0) + a (m, k) b (k, n) + bias (n). `bias` has b's type, or is null. c is
  /// row-major. Weights `b` that have a version are multiplied from a packed copy if that pays.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b, void* bias,
                MatrixView c, bool accumulate);

  /// y (rows, out) = x (rows, in) w (in, out) + bias (out). `bias` has w's type, or is null. w is dense in
  /// either order; x and y are row-major. oneDNN packs the weights while it multiplies. In fp32, this is as
  /// fast as with a packed copy.
  void inner_product(std::int64_t rows, std::int64_t in, std::int64_t out, MatrixView x, MatrixView w,
                     void* bias, MatrixView y);

  /// dw (in, out) = xᵀ dy with x (rows, in) and dy (rows, out) row-major and dw dense in either order. oneDNN
  /// has a kernel for this that is faster than the product with a transposed matrix.
  void weight_gradient(std::int64_t rows, std::int64_t in, std::int64_t out, MatrixView x, MatrixView dy,
                       MatrixView dw);

  /// See PackedWeights.
  void forget(const void* begin, std::size_t bytes) { packed_.forget(begin, bytes); }

 private:
  void run(Product& product, void* a, void* b, void* bias, void* c);

  dnnl::engine engine_ = cpu_engine();
  dnnl::stream stream_{engine_};
  Products products_{engine_};
  PackedWeights packed_;
  ScratchBuffer scratchpad_;
};

}  // namespace mylos::compute_onednn
