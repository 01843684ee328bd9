// SPDX-License-Identifier: BSD-3-Clause
// KernelOperations: the hand-written kernels as operations.
#pragma once

#include "backends/compute_cuda/workspace.hpp"
#include "core/ops/operation_table.hpp"

namespace mylos::compute_cuda {

/// Declines what its kernels do not take; see kernels.hpp.
class KernelOperations {
 public:
  using List = OperationList<Sum, SumOfSquares, EmbeddingBackward, LayernormForward, DropoutAddLayernorm,
                             LayernormBackwardInput, LayernormBackwardWeight, GeluForward, GeluBackward,
                             DropoutAdd, AttentionForward, AttentionBackward, CrossEntropy, AdamWStep>;

  KernelOperations(ComputeBackend& memory, const Workspace& workspace)
      : memory_(memory), workspace_(workspace) {}

  void run(Stream stream, const Sum& op);
  void run(Stream stream, const SumOfSquares& op);
  bool run(Stream stream, const EmbeddingBackward& op);
  bool run(Stream stream, const LayernormForward& op);
  bool run(Stream stream, const DropoutAddLayernorm& op);
  bool run(Stream stream, const LayernormBackwardInput& op);
  void run(Stream stream, const LayernormBackwardWeight& op);
  bool run(Stream stream, const GeluForward& op);
  bool run(Stream stream, const GeluBackward& op);
  bool run(Stream stream, const DropoutAdd& op);
  bool run(Stream stream, const AttentionForward& op);
  bool run(Stream stream, const AttentionBackward& op);
  bool run(Stream stream, const CrossEntropy& op);
  bool run(Stream stream, const AdamWStep& op);

 private:
  cudaStream_t queue(Stream stream) { return cuda_stream(memory_, stream); }

  ComputeBackend& memory_;
  const Workspace& workspace_;
};

}  // namespace mylos::compute_cuda
