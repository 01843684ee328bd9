// SPDX-License-Identifier: BSD-3-Clause
// Matmul: matrix products by mylos' own kernels, summed in fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/compute_onednn/matmul_kernel.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/memory/scratch_buffer.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/ops/matrix_view.hpp"

namespace mylos::compute_onednn {

/// oneDNN multiplies bf16 weights fast only with bf16 instructions and from packed copies, which cost memory
/// and one pass per step. It lacks fp16. In Matmul, each thread packs one panel of 48 columns while it
/// multiplies its rows by the panel before it (Goto and van de Geijn, "Anatomy of High-Performance Matrix
/// Multiplication", 2008), and prefetches the memory that it uses next. Factors are packed as fp32, except
/// bf16 with AVX-512 BF16.
class Matmul {
 public:
  Matmul(ComputeBackend& memory, MemoryLedger* ledger) : scratch_(memory, ledger, "mylos::onednn::matmul") {}

  /// Whether this machine and build have a kernel for factors of this type.
  static bool supports(DType type);

  /// c (m, n) = (accumulate ? c : 0) + a (m, k) b (k, n) + bias (n). `bias` has b's type, or is null. a and b
  /// have the same type; c has that type or fp32. Each matrix is in either storage order, but c is row-major
  /// if there is a bias. If `column_sums` (n), of c's type, is not null, the column sums of b are written
  /// there, or added if `accumulate`. The order of all sums depends only on the shape, the factors' type and
  /// the instruction set.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b, const void* bias,
                MatrixView c, bool accumulate, void* column_sums = nullptr);

  /// Scratch memory of a product by `threads` threads (0: OpenMP's number). `a_is_transposed`: the values of
  /// a row of `a` are not contiguous.
  static std::size_t scratch_bytes(DType type, std::int64_t m, std::int64_t n, std::int64_t k,
                                   bool a_is_transposed, int threads);
  /// The most scratch memory of products with 1 to m rows or, if `a_is_transposed`, that sum over 1 to k
  /// values.
  static std::size_t most_scratch_bytes(DType type, std::int64_t m, std::int64_t n, std::int64_t k,
                                        bool a_is_transposed, int threads);
  void reserve(std::size_t bytes) { scratch_.reserve(bytes); }

 private:
  ScratchBuffer scratch_;
};

}  // namespace mylos::compute_onednn
