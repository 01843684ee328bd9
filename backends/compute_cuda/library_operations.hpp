// SPDX-License-Identifier: BSD-3-Clause
// LibraryOperations: linear layers through cuBLASLt, attention through cuDNN.
#pragma once

#include <string>

#include "backends/compute_cuda/cublas_matmul.hpp"
#include "backends/compute_cuda/workspace.hpp"
#include "core/ops/operation_table.hpp"
#include "core/plugin.hpp"
#if defined(MYLOS_HAVE_CUDNN)
#include "backends/compute_cuda/cudnn_attention.hpp"
#endif

namespace mylos::compute_cuda {

/// Declines operations that the libraries do not support.
class LibraryOperations {
 public:
#if defined(MYLOS_HAVE_CUDNN)
  using List = OperationList<LinearForward, LinearBackwardInput, LinearBackwardWeight, LinearAddForward,
                             LinearGeluForward, LinearGeluBackwardInput, AttentionForward, AttentionBackward,
                             MatrixProduct>;
#else
  using List = OperationList<LinearForward, LinearBackwardInput, LinearBackwardWeight, LinearAddForward,
                             LinearGeluForward, LinearGeluBackwardInput, MatrixProduct>;
#endif

  LibraryOperations(ComputeBackend& memory, const Workspace& workspace, MemoryLedger* ledger, bool autotunes);

  /// The most bytes that cuDNN needs for this attention.
  static std::size_t attention_workspace(const PlannedAttention& attention);

  /// The libraries in use and their versions.
  static std::string libraries();

  bool run(const LinearForward& op);
  bool run(const LinearBackwardInput& op);
  bool run(const LinearBackwardWeight& op);
  bool run(const LinearAddForward& op);
  bool run(const LinearGeluForward& op);
  bool run(const LinearGeluBackwardInput& op);
  bool run(const MatrixProduct& op);
#if defined(MYLOS_HAVE_CUDNN)
  bool run(const AttentionForward& op);
  bool run(const AttentionBackward& op);
#endif

 private:
  ComputeBackend& memory_;
  const Workspace& workspace_;
  CublasMatmul matmul_;
  // Before Hopper, a separate GELU pass is faster (llm.c, pull requests 338 and 653).
  bool fuses_gelu_ = false;
#if defined(MYLOS_HAVE_CUDNN)
  CudnnAttention attention_;
#endif
};

}  // namespace mylos::compute_cuda
