// SPDX-License-Identifier: BSD-3-Clause
// Bf16Matmul: products of bf16 matrices by AVX-512 BF16, summed in fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/compute_onednn/scratch.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/ops/matrix_ref.hpp"

namespace mylos::compute_onednn {

/// oneDNN multiplies weights fast only from packed copies, which cost memory and a pass a step. This product
/// packs a panel of 48 columns at a time while it multiplies the one before it by all rows (Goto and van de
/// Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008), and asks for every line in time.
class Bf16Matmul {
 public:
  Bf16Matmul(ComputeBackend& memory, MemoryLedger* ledger)
      : scratch_(memory, ledger, "mylos::onednn::bf16_matmul") {}

  /// Whether this machine and build have the instructions. Where there is AMX, oneDNN is faster.
  static bool usable();

  /// c (m, n) = (accumulate ? c : 0) + a (m, k) b (k, n) + bias (n), bf16 or null. a and b bf16, c bf16 or
  /// fp32, each in either storage order; c row-major where there is a bias. Also writes or adds the column
  /// sums of b (n), in c's type, where `column_sums` is not null. The order of all sums depends on the shape
  /// only.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef a, MatrixRef b, const void* bias,
                MatrixRef c, bool accumulate, void* column_sums = nullptr);

  /// What a product by `threads` threads (0: OpenMP's number) keeps, `a_is_transposed` where the values of a
  /// row of a are not neighbours.
  static std::size_t scratch_bytes(std::int64_t m, std::int64_t n, std::int64_t k, bool a_is_transposed,
                                   int threads);

 private:
  Scratch scratch_;
};

}  // namespace mylos::compute_onednn
