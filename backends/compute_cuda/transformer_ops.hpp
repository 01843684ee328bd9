// SPDX-License-Identifier: BSD-3-Clause
// CudaTransformerOps: linear layers through cuBLASLt, attention through cuDNN where it takes the case,
// hand-written kernels; what they do not take goes to `next`.
#pragma once

#include <string>

#include "backends/compute_cuda/cublas_matmul.hpp"
#include "backends/compute_cuda/kernel_ops.hpp"
#if defined(MYLOS_HAVE_CUDNN)
#include "backends/compute_cuda/cudnn_attention.hpp"
#endif

namespace mylos::compute_cuda {

class CudaTransformerOps final : public KernelTransformerOps {
 public:
  CudaTransformerOps(ComputeBackend& next, const Workspace& workspace, MemoryLedger* ledger);

  /// The libraries that it uses, and their versions.
  static std::string libraries();

  void linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef y) override;
  void linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) override;
  void linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw, TensorRef dbias,
                              bool accumulate) override;
  void linear_gelu_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef pre,
                           TensorRef y) override;
  void linear_gelu_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef pre,
                                  TensorRef dpre) override;
#if defined(MYLOS_HAVE_CUDNN)
  void attention_forward(Stream stream, const AttentionArgs& args) override;
  void attention_backward(Stream stream, const AttentionBackwardArgs& args) override;
#endif

 private:
  CublasMatmul matmul_;
  bool fuses_gelu_ = false;  // before Hopper a pass of its own is faster (llm.c, pull requests 338 and 653)
#if defined(MYLOS_HAVE_CUDNN)
  CudnnAttention attention_;
#endif
};

}  // namespace mylos::compute_cuda
