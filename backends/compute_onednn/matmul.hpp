// SPDX-License-Identifier: BSD-3-Clause
// Matmul: products of matrices by kernels of our own, summed in fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/compute_onednn/matmul_kernel.hpp"
#include "backends/compute_onednn/scratch.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/ops/matrix_ref.hpp"

namespace mylos::compute_onednn {

/// oneDNN multiplies weights fast only from packed copies, which cost memory and a pass a step, and bf16 fast
/// only by instructions for it. This product packs a panel of 48 columns at a time while it multiplies the
/// one before it by all rows (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication",
/// 2008), and asks for every line in time. Without instructions for bf16 and fp16 what is packed is fp32.
class Matmul {
 public:
  Matmul(ComputeBackend& memory, MemoryLedger* ledger) : scratch_(memory, ledger, "mylos::onednn::matmul") {}

  /// Whether this machine and build have a kernel for factors of this type.
  static bool supports(DType type);

  /// c (m, n) = (accumulate ? c : 0) + a (m, k) b (k, n) + bias (n) of b's type or null. a and b of one type,
  /// c of theirs or fp32, each in either storage order; c row-major if there is a bias. Also writes or
  /// adds the column sums of b (n), in c's type, if `column_sums` is not null. The order of all sums
  /// depends on the shape and the instructions only.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef a, MatrixRef b, const void* bias,
                MatrixRef c, bool accumulate, void* column_sums = nullptr);

  /// What a product by `threads` threads (0: OpenMP's number) keeps, `a_is_transposed` if the values of a
  /// row of a are not neighbours.
  static std::size_t scratch_bytes(DType type, std::int64_t m, std::int64_t n, std::int64_t k,
                                   bool a_is_transposed, int threads);

 private:
  Scratch scratch_;
};

}  // namespace mylos::compute_onednn
