// SPDX-License-Identifier: BSD-3-Clause
// KokkosTransformerOps: the layers of a transformer, one file of kernels for each.
#pragma once

#include "core/ops/compute_backend.hpp"

namespace mylos::compute_kokkos {

class KokkosTransformerOps final : public TransformerOps {
 public:
  void linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef y) override;
  void linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) override;
  void linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw, TensorRef dbias,
                              bool accumulate) override;

  void embedding_forward(Stream stream, TensorRef tokens, TensorRef wte, TensorRef wpe, std::int64_t position,
                         TensorRef out) override;
  void embedding_backward(Stream stream, TensorRef tokens, TensorRef dout, std::int64_t position,
                          TensorRef dwte, bool accumulate_wte, TensorRef dwpe, bool accumulate_wpe) override;

  void layernorm_forward(Stream stream, TensorRef x, TensorRef gamma, TensorRef beta, TensorRef y,
                         TensorRef mean, TensorRef rstd) override;
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
};

}  // namespace mylos::compute_kokkos
