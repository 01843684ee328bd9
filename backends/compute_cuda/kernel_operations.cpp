// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/kernel_operations.hpp"

#include "backends/compute_cuda/kernels.hpp"

namespace mylos::compute_cuda {

void KernelOperations::run(const Sum& op) {
  kernels::sum(queue(), op.x, op.out, op.accumulate, workspace_);
}

void KernelOperations::run(const SumOfSquares& op) {
  kernels::sum_of_squares(queue(), op.x, op.factor, op.out, op.accumulate, workspace_);
}

bool KernelOperations::run(const EmbeddingBackward& op) {
  require(op.position >= 0 && op.position + op.tokens.shape[1] <= op.dwpe.shape[0], "positions inside dwpe");
  if (!kernels::token_gradient(queue(), op.tokens, op.dout, op.first_token, op.dwte, op.accumulate_wte,
                               workspace_)) {
    return false;
  }
  kernels::position_gradient(queue(), op.dout, op.position, op.dwpe, op.accumulate_wpe);
  return true;
}

bool KernelOperations::run(const LayernormForward& op) {
  return kernels::layernorm_forward(queue(), op.x, {}, {}, op.gamma, op.beta, op.y, op.mean, op.rstd);
}

bool KernelOperations::run(const DropoutAddLayernorm& op) {
  return op.dropout.probability == 0.0F && op.residual &&
         kernels::layernorm_forward(queue(), op.x, op.residual, op.sum, op.gamma, op.beta, op.y, op.mean,
                                    op.rstd);
}

bool KernelOperations::run(const LayernormBackwardInput& op) {
  return kernels::layernorm_backward_input(queue(), op.dy, op.x, op.gamma, op.mean, op.rstd, op.residual,
                                           op.dx);
}

void KernelOperations::run(const LayernormBackwardWeight& op) {
  kernels::layernorm_backward_weight(queue(), op.dy, op.x, op.mean, op.rstd, op.dgamma, op.dbeta,
                                     op.accumulate, workspace_);
}

bool KernelOperations::run(const GeluForward& op) {
  return kernels::gelu_forward(queue(), op.x, op.y);
}

bool KernelOperations::run(const GeluBackward& op) {
  return kernels::gelu_backward(queue(), op.x, op.dy, op.dx);
}

bool KernelOperations::run(const DropoutAdd& op) {
  return op.dropout.probability == 0.0F && kernels::residual_add(queue(), op.x, op.residual, op.y);
}

bool KernelOperations::run(const AttentionForward& op) {
  return kernels::attention_forward(queue(), op);
}

bool KernelOperations::run(const AttentionBackward& op) {
  return kernels::attention_backward(queue(), op);
}

bool KernelOperations::run(const CrossEntropy& op) {
  return !op.statistics && kernels::cross_entropy(queue(), op);
}

bool KernelOperations::run(const AdamWStep& op) {
  return kernels::adamw(queue(), op, workspace_);
}

}  // namespace mylos::compute_cuda
