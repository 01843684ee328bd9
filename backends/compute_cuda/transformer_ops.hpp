// SPDX-License-Identifier: BSD-3-Clause
// CudaTransformerOps: the linear layer through cuBLASLt, attention through cuDNN, everything else through
// `next`.
#pragma once

#include <string>

#include "backends/compute_cuda/cublas_matmul.hpp"
#include "core/forwarding_ops.hpp"
#if defined(MYLOS_HAVE_CUDNN)
#include "backends/compute_cuda/cudnn_attention.hpp"
#endif

namespace mylos {

class CudaTransformerOps final : public ForwardingTransformerOps {
 public:
  CudaTransformerOps(ComputeBackend& next, MemoryLedger* ledger);

  /// The libraries that it uses, and their versions.
  static std::string libraries();

  void linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef y) override;
  void linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) override;
  void linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw, TensorRef dbias,
                              bool accumulate) override;
#if defined(MYLOS_HAVE_CUDNN)
  void attention_forward(Stream stream, const AttentionArgs& args) override;
  void attention_backward(Stream stream, const AttentionBackwardArgs& args) override;
#endif

 private:
  ComputeBackend& backend_;
  CublasMatmul matmul_;
#if defined(MYLOS_HAVE_CUDNN)
  CudnnAttention attention_;
#endif
};

}  // namespace mylos
