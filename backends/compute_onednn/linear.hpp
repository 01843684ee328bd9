// SPDX-License-Identifier: BSD-3-Clause
// OnednnOperations: the linear layer through oneDNN or Matmul.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "backends/compute_onednn/matmul.hpp"
#include "backends/compute_onednn/matmul_cache.hpp"
#include "core/ops/forwarding_backend.hpp"
#include "core/plugin.hpp"

namespace mylos::compute_onednn {

/// Declines types that neither oneDNN nor Matmul multiplies fast on this machine, and the forward products of
/// fewer than `least_rows` rows: reading the weights is then most of the work, and the backend below does
/// that at the speed of memory.
///
/// The products of experts go through Matmul one expert at a time, since oneDNN would prepare a kernel for
/// each number of rows. The host reads that number: an operation before this one has ended.
class OnednnOperations {
 public:
  using List = OperationList<LinearForward, LinearBackwardInput, LinearBackwardWeight, GroupedLinearForward,
                             GroupedLinearBackwardInput, GroupedLinearBackwardWeight, MatrixProduct>;

  static constexpr std::int64_t least_rows = 9;

  /// Scratch memory and packed copies are allocated from `memory`.
  OnednnOperations(ComputeBackend& memory, MemoryLedger* ledger)
      : below_(memory), library_(memory, ledger), own_(memory, ledger) {}

  bool run(const LinearForward& op);
  bool run(const LinearBackwardInput& op);
  bool run(const LinearBackwardWeight& op);
  bool run(const GroupedLinearForward& op);
  bool run(const GroupedLinearBackwardInput& op);
  bool run(const GroupedLinearBackwardWeight& op);
  bool run(const MatrixProduct& op);

  /// Bytes that a run with these products keeps: scratch memory, which they share, and packed copies.
  static std::size_t workspace(const PlannedWork& work);

  /// The types for which Matmul is used on this machine, as text: ", own GEMM (bf16, fp16)", or empty.
  static std::string own_products();

  /// See PackedWeights.
  void forget(const void* begin, std::size_t bytes) { library_.forget(begin, bytes); }

 private:
  /// c (m, n) = a (m, k) b (k, n) + bias (n), by the faster of oneDNN and Matmul. `bias` may be null.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b, void* bias,
                MatrixView c);

  ComputeBackend& below_;
  MatmulCache library_;
  Matmul own_;
};

}  // namespace mylos::compute_onednn
