// SPDX-License-Identifier: BSD-3-Clause
// OnednnTransformerOps: the linear layer through oneDNN or Bf16Matmul, everything else through `next`.
#pragma once

#include <cstddef>
#include <span>

#include "backends/compute_onednn/bf16_matmul.hpp"
#include "backends/compute_onednn/matmul_cache.hpp"
#include "core/ops/forwarding_ops.hpp"
#include "core/plugin.hpp"

namespace mylos::compute_onednn {

/// Types that oneDNN does not multiply on this machine fall through as well.
class OnednnTransformerOps final : public ForwardingTransformerOps {
 public:
  OnednnTransformerOps(ComputeBackend& next, MemoryLedger* ledger)
      : ForwardingTransformerOps(next.transformer_ops()), matmul_(next, ledger), bf16_matmul_(next, ledger) {}

  void linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef y) override;
  void linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) override;
  void linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw, TensorRef dbias,
                              bool accumulate) override;

  /// Bytes that a run with these products keeps: scratch memory, which they share, and packed copies.
  static std::size_t workspace(std::span<const PlannedProduct> planned);

  /// The memory of weights is about to be freed.
  void forget(const void* begin, std::size_t bytes) { matmul_.forget(begin, bytes); }

 private:
  /// c (m, n) = a (m, k) b (k, n) + bias (n) or null, by the faster of both products.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef a, MatrixRef b, void* bias,
                MatrixRef c);

  MatmulCache matmul_;
  Bf16Matmul bf16_matmul_;
};

}  // namespace mylos::compute_onednn
