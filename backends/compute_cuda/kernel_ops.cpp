// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/kernel_ops.hpp"

#include "backends/compute_cuda/kernels.hpp"

namespace mylos::compute_cuda {

void KernelTensorOps::sum(Stream stream, TensorRef x, TensorRef out, bool accumulate) {
  kernels::sum(cuda_stream(backend_, stream), x, out, accumulate, workspace_);
}

void KernelTensorOps::sum_of_squares(Stream stream, TensorRef x, float factor, TensorRef out,
                                     bool accumulate) {
  kernels::sum_of_squares(cuda_stream(backend_, stream), x, factor, out, accumulate, workspace_);
}

void KernelTransformerOps::embedding_backward(Stream stream, TensorRef tokens, TensorRef dout,
                                              std::int64_t position, TensorRef dwte, bool accumulate_wte,
                                              TensorRef dwpe, bool accumulate_wpe) {
  require(position >= 0 && position + tokens.shape[1] <= dwpe.shape[0], "positions inside dwpe");
  if (!kernels::token_gradient(queue(stream), tokens, dout, dwte, accumulate_wte, workspace_)) {
    return next().embedding_backward(stream, tokens, dout, position, dwte, accumulate_wte, dwpe,
                                     accumulate_wpe);
  }
  kernels::position_gradient(queue(stream), dout, position, dwpe, accumulate_wpe);
}

void KernelTransformerOps::layernorm_forward(Stream stream, TensorRef x, TensorRef gamma, TensorRef beta,
                                             TensorRef y, TensorRef mean, TensorRef rstd) {
  if (!kernels::layernorm_forward(queue(stream), x, {}, {}, gamma, beta, y, mean, rstd)) {
    next().layernorm_forward(stream, x, gamma, beta, y, mean, rstd);
  }
}

void KernelTransformerOps::dropout_add_layernorm(Stream stream, TensorRef x, TensorRef residual,
                                                 const Dropout& dropout, TensorRef sum, TensorRef gamma,
                                                 TensorRef beta, TensorRef y, TensorRef mean,
                                                 TensorRef rstd) {
  if (dropout.probability > 0.0F || !residual ||
      !kernels::layernorm_forward(queue(stream), x, residual, sum, gamma, beta, y, mean, rstd)) {
    TransformerOps::dropout_add_layernorm(stream, x, residual, dropout, sum, gamma, beta, y, mean, rstd);
  }
}

void KernelTransformerOps::layernorm_backward_input(Stream stream, TensorRef dy, TensorRef x, TensorRef gamma,
                                                    TensorRef mean, TensorRef rstd, TensorRef residual,
                                                    TensorRef dx) {
  if (!kernels::layernorm_backward_input(queue(stream), dy, x, gamma, mean, rstd, residual, dx)) {
    next().layernorm_backward_input(stream, dy, x, gamma, mean, rstd, residual, dx);
  }
}

void KernelTransformerOps::layernorm_backward_weight(Stream stream, TensorRef dy, TensorRef x, TensorRef mean,
                                                     TensorRef rstd, TensorRef dgamma, TensorRef dbeta,
                                                     bool accumulate) {
  kernels::layernorm_backward_weight(queue(stream), dy, x, mean, rstd, dgamma, dbeta, accumulate, workspace_);
}

void KernelTransformerOps::gelu_forward(Stream stream, TensorRef x, TensorRef y) {
  if (!kernels::gelu_forward(queue(stream), x, y)) next().gelu_forward(stream, x, y);
}

void KernelTransformerOps::gelu_backward(Stream stream, TensorRef x, TensorRef dy, TensorRef dx) {
  if (!kernels::gelu_backward(queue(stream), x, dy, dx)) next().gelu_backward(stream, x, dy, dx);
}

void KernelTransformerOps::dropout_add(Stream stream, TensorRef x, TensorRef residual, const Dropout& dropout,
                                       TensorRef y) {
  if (dropout.probability > 0.0F || !kernels::residual_add(queue(stream), x, residual, y)) {
    next().dropout_add(stream, x, residual, dropout, y);
  }
}

void KernelTransformerOps::attention_forward(Stream stream, const AttentionArgs& args) {
  if (!kernels::attention_forward(queue(stream), args)) next().attention_forward(stream, args);
}

void KernelTransformerOps::attention_backward(Stream stream, const AttentionBackwardArgs& args) {
  if (!kernels::attention_backward(queue(stream), args)) next().attention_backward(stream, args);
}

void KernelTransformerOps::cross_entropy(Stream stream, TensorRef logits, TensorRef targets,
                                         std::int64_t vocab, float gradient_scale, const StepScalars* scalars,
                                         TensorRef losses, TensorRef correct) {
  if (!kernels::cross_entropy(queue(stream), logits, targets, vocab, gradient_scale, scalars, losses,
                              correct)) {
    next().cross_entropy(stream, logits, targets, vocab, gradient_scale, scalars, losses, correct);
  }
}

void KernelOptimizerOps::adamw(Stream stream, const AdamWArgs& args) {
  if (!kernels::adamw(cuda_stream(backend_, stream), args, workspace_)) next().adamw(stream, args);
}

}  // namespace mylos::compute_cuda
