// SPDX-License-Identifier: BSD-3-Clause
// KernelOperations: the hand-written kernels as operations.
#pragma once

#include "backends/compute_cuda/workspace.hpp"
#include "core/ops/operation_table.hpp"

namespace mylos::compute_cuda {

/// Operations that return a bool do nothing and return false if their kernels do not support the tensors:
/// rows that are not a multiple of 16 bytes or not aligned to 16 bytes; for attention, heads of more than 128
/// elements; for the embedding, more tokens than the workspace has room for.
class KernelOperations {
 public:
  using List = OperationList<Sum, SumOfSquares, EmbeddingBackward, LayernormForward, DropoutAddLayernorm,
                             LayernormBackwardInput, LayernormBackwardWeight, GeluForward, GeluBackward,
                             DropoutAdd, AttentionForward, AttentionBackward, CrossEntropy, AdamWStep>;

  KernelOperations(ComputeBackend& memory, const Workspace& workspace)
      : memory_(memory), workspace_(workspace) {}

  void run(const Sum& op);
  void run(const SumOfSquares& op);
  bool run(const EmbeddingBackward& op);
  bool run(const LayernormForward& op);
  bool run(const DropoutAddLayernorm& op);
  bool run(const LayernormBackwardInput& op);
  void run(const LayernormBackwardWeight& op);
  bool run(const GeluForward& op);
  bool run(const GeluBackward& op);
  bool run(const DropoutAdd& op);
  bool run(const AttentionForward& op);
  bool run(const AttentionBackward& op);
  bool run(const CrossEntropy& op);
  bool run(const AdamWStep& op);

 private:
  cudaStream_t queue() { return cuda_stream(memory_); }

  ComputeBackend& memory_;
  const Workspace& workspace_;
};

/// dbias = (accumulate ? dbias : 0) + column sums of dy: what is left of LinearBackwardWeight where
/// cuBLASLt's epilogue refuses it.
void bias_gradient(cudaStream_t stream, TensorRef dy, TensorRef dbias, bool accumulate,
                   const Workspace& workspace);

}  // namespace mylos::compute_cuda
