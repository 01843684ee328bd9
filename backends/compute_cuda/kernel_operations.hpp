// SPDX-License-Identifier: BSD-3-Clause
// KernelOperations: the hand-written kernels as operations.
#pragma once

#include "backends/compute_cuda/workspace.hpp"
#include "core/ops/operation_table.hpp"

namespace mylos::compute_cuda {

/// Declines operations that the kernels do not support; see kernels.hpp.
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

}  // namespace mylos::compute_cuda
