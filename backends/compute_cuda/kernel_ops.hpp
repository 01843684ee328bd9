// SPDX-License-Identifier: BSD-3-Clause
// The op sets with the hand-written kernels; what these do not take goes to `next`.
#pragma once

#include "backends/compute_cuda/workspace.hpp"
#include "core/ops/forwarding_ops.hpp"

namespace mylos::compute_cuda {

class KernelTensorOps final : public ForwardingTensorOps {
 public:
  KernelTensorOps(ComputeBackend& next, const Workspace& workspace)
      : ForwardingTensorOps(next.tensor_ops()), backend_(next), workspace_(workspace) {}

  void sum(Stream stream, TensorRef x, TensorRef out, bool accumulate) override;
  void sum_of_squares(Stream stream, TensorRef x, float factor, TensorRef out, bool accumulate) override;

 private:
  ComputeBackend& backend_;
  const Workspace& workspace_;
};

class KernelTransformerOps : public ForwardingTransformerOps {
 public:
  KernelTransformerOps(ComputeBackend& next, const Workspace& workspace)
      : ForwardingTransformerOps(next.transformer_ops()), backend_(next), workspace_(workspace) {}

  void embedding_backward(Stream stream, TensorRef tokens, TensorRef dout, std::int64_t position,
                          TensorRef dwte, bool accumulate_wte, TensorRef dwpe, bool accumulate_wpe) override;
  void layernorm_forward(Stream stream, TensorRef x, TensorRef gamma, TensorRef beta, TensorRef y,
                         TensorRef mean, TensorRef rstd) override;
  void dropout_add_layernorm(Stream stream, TensorRef x, TensorRef residual, const Dropout& dropout,
                             TensorRef sum, TensorRef gamma, TensorRef beta, TensorRef y, TensorRef mean,
                             TensorRef rstd) override;
  void layernorm_backward_input(Stream stream, TensorRef dy, TensorRef x, TensorRef gamma, TensorRef mean,
                                TensorRef rstd, TensorRef residual, TensorRef dx) override;
  void layernorm_backward_weight(Stream stream, TensorRef dy, TensorRef x, TensorRef mean, TensorRef rstd,
                                 TensorRef dgamma, TensorRef dbeta, bool accumulate) override;
  void gelu_forward(Stream stream, TensorRef x, TensorRef y) override;
  void gelu_backward(Stream stream, TensorRef x, TensorRef dy, TensorRef dx) override;
  void dropout_add(Stream stream, TensorRef x, TensorRef residual, const Dropout& dropout,
                   TensorRef y) override;
  void attention_forward(Stream stream, const AttentionArgs& args) override;
  void attention_backward(Stream stream, const AttentionBackwardArgs& args) override;
  void cross_entropy(Stream stream, TensorRef logits, TensorRef targets, std::int64_t vocab,
                     float gradient_scale, const StepScalars* scalars, TensorRef losses,
                     TensorRef correct) override;

 protected:
  cudaStream_t queue(Stream stream) { return cuda_stream(backend_, stream); }
  const Workspace& workspace() const { return workspace_; }

 private:
  ComputeBackend& backend_;
  const Workspace& workspace_;
};

class KernelOptimizerOps final : public ForwardingOptimizerOps {
 public:
  KernelOptimizerOps(ComputeBackend& next, const Workspace& workspace)
      : ForwardingOptimizerOps(next.optimizer_ops()), backend_(next), workspace_(workspace) {}

  void adamw(Stream stream, const AdamWArgs& args) override;

 private:
  ComputeBackend& backend_;
  const Workspace& workspace_;
};

}  // namespace mylos::compute_cuda
