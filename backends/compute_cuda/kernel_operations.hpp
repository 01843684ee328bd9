// SPDX-License-Identifier: BSD-3-Clause
// KernelOperations: the hand-written kernels as operations.
#pragma once

#include "backends/compute_cuda/workspace.hpp"
#include "core/ops/operation_table.hpp"

namespace mylos::compute_cuda {

/// If its kernel does not support the arguments, an operation that returns a bool does nothing and returns
/// false. Attention supports heads of at most 128 elements. GELU, the residual sum, layernorm (except the
/// gradients of its weights), cross-entropy and AdamW require addresses that are multiples of 16 bytes,
/// except of operands with one element per row. Except in AdamW, the size of a row (in GELU and the residual
/// sum, of the whole tensor) must be such a multiple too. The residual sum supports no dropout and, with
/// layernorm, requires a residual; layernorm supports no empty x, and cross-entropy no divided vocabulary.
/// The embedding's gradient sorts the tokens and needs room for them in the workspace.
class KernelOperations {
 public:
  using List =
      OperationList<Sum, SumOfSquares, EmbeddingBackward, LayernormForward, DropoutAddLayernorm,
                    LayernormBackward, LayernormBackwardInput, LayernormBackwardWeight, GeluForward,
                    GeluBackward, DropoutAdd, AttentionForward, AttentionBackward, CrossEntropy, AdamWStep>;

  KernelOperations(ComputeBackend& memory, const Workspace& workspace)
      : memory_(memory), workspace_(workspace) {}

  void run(const Sum& op);
  void run(const SumOfSquares& op);
  bool run(const EmbeddingBackward& op);
  bool run(const LayernormForward& op);
  bool run(const DropoutAddLayernorm& op);
  bool run(const LayernormBackward& op);
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

/// dbias = (accumulate ? dbias : 0) + column sums of dy, for a LinearBackwardWeight whose dbias cuBLASLt's
/// epilogue does not compute.
void bias_gradient(cudaStream_t stream, TensorRef dy, TensorRef dbias, bool accumulate,
                   const Workspace& workspace);

}  // namespace mylos::compute_cuda
