// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/kernel_operations.hpp"

#include "backends/compute_cuda/kernels.hpp"

namespace mylos::compute_cuda {

void KernelOperations::run(Stream stream, const Sum& op) {
  kernels::sum(queue(stream), op.x, op.out, op.accumulate, workspace_);
}

void KernelOperations::run(Stream stream, const SumOfSquares& op) {
  kernels::sum_of_squares(queue(stream), op.x, op.factor, op.out, op.accumulate, workspace_);
}

bool KernelOperations::run(Stream stream, const EmbeddingBackward& op) {
  require(op.position >= 0 && op.position + op.tokens.shape[1] <= op.dwpe.shape[0], "positions inside dwpe");
  if (!kernels::token_gradient(queue(stream), op.tokens, op.dout, op.dwte, op.accumulate_wte, workspace_)) {
    return false;
  }
  kernels::position_gradient(queue(stream), op.dout, op.position, op.dwpe, op.accumulate_wpe);
  return true;
}

bool KernelOperations::run(Stream stream, const LayernormForward& op) {
  return kernels::layernorm_forward(queue(stream), op.x, {}, {}, op.gamma, op.beta, op.y, op.mean, op.rstd);
}

bool KernelOperations::run(Stream stream, const DropoutAddLayernorm& op) {
  return op.dropout.probability == 0.0F && op.residual &&
         kernels::layernorm_forward(queue(stream), op.x, op.residual, op.sum, op.gamma, op.beta, op.y,
                                    op.mean, op.rstd);
}

bool KernelOperations::run(Stream stream, const LayernormBackwardInput& op) {
  return kernels::layernorm_backward_input(queue(stream), op.dy, op.x, op.gamma, op.mean, op.rstd,
                                           op.residual, op.dx);
}

void KernelOperations::run(Stream stream, const LayernormBackwardWeight& op) {
  kernels::layernorm_backward_weight(queue(stream), op.dy, op.x, op.mean, op.rstd, op.dgamma, op.dbeta,
                                     op.accumulate, workspace_);
}

bool KernelOperations::run(Stream stream, const GeluForward& op) {
  return kernels::gelu_forward(queue(stream), op.x, op.y);
}

bool KernelOperations::run(Stream stream, const GeluBackward& op) {
  return kernels::gelu_backward(queue(stream), op.x, op.dy, op.dx);
}

bool KernelOperations::run(Stream stream, const DropoutAdd& op) {
  return op.dropout.probability == 0.0F && kernels::residual_add(queue(stream), op.x, op.residual, op.y);
}

bool KernelOperations::run(Stream stream, const AttentionForward& op) {
  return kernels::attention_forward(queue(stream), op);
}

bool KernelOperations::run(Stream stream, const AttentionBackward& op) {
  return kernels::attention_backward(queue(stream), op);
}

bool KernelOperations::run(Stream stream, const CrossEntropy& op) {
  return kernels::cross_entropy(queue(stream), op);
}

bool KernelOperations::run(Stream stream, const AdamWStep& op) {
  return kernels::adamw(queue(stream), op, workspace_);
}

}  // namespace mylos::compute_cuda
