// SPDX-License-Identifier: BSD-3-Clause
// KokkosOperations: a kernel for every operation that is not fused, one file per kind. Two fused operations
// have kernels for a few rows on the host.
#pragma once

#include "backends/compute_kokkos/few_rows.hpp"
#include "backends/compute_kokkos/views.hpp"
#include "core/ops/operation_table.hpp"

namespace mylos::compute_kokkos {

class KokkosOperations {
 public:
  using List =
      OperationList<Fill, Cast, FillNormal, Sum, SumOfSquares, LinearForward, LinearBackwardInput,
                    LinearBackwardWeight, EmbeddingForward, EmbeddingBackward, LayernormForward,
                    LayernormBackwardInput, LayernormBackwardWeight, GeluForward, GeluBackward, DropoutAdd,
                    AttentionForward, AttentionBackward, CacheAppend, CachedAttention, SoftmaxStatistics,
                    CrossEntropy, LinearAddForward, LinearGeluForward, AdamWStep, SgdStep, GuardStep,
                    RouterForward, RouterBackwardInput, RouterBackwardWeight, RouterChoice, ExpertPlaces,
                    GatherRows, CombineRows, CombineRowsBackward, GroupedLinearForward,
                    GroupedLinearBackwardInput, GroupedLinearBackwardWeight, RouterStatistics, RouterGradient,
                    TopTokens, PositiveTokens, Subtract, DepthPredictorLoss, MatrixProduct, ScaledSum,
                    NormaliseMatrices, NesterovMomentum, CopyBlocks, MuonStep>;

  void run(const Fill& op);
  void run(const Cast& op);
  void run(const FillNormal& op);
  void run(const Sum& op);
  void run(const SumOfSquares& op);
  void run(const LinearForward& op);
  void run(const LinearBackwardInput& op);
  void run(const LinearBackwardWeight& op);
  void run(const EmbeddingForward& op);
  void run(const EmbeddingBackward& op);
  void run(const LayernormForward& op);
  void run(const LayernormBackwardInput& op);
  void run(const LayernormBackwardWeight& op);
  void run(const GeluForward& op);
  void run(const GeluBackward& op);
  void run(const DropoutAdd& op);
  void run(const AttentionForward& op);
  void run(const AttentionBackward& op);
  void run(const CacheAppend& op);
  void run(const CachedAttention& op);
  void run(const SoftmaxStatistics& op);
  void run(const CrossEntropy& op);
  bool run(const LinearAddForward& op);
  bool run(const LinearGeluForward& op);
  void run(const AdamWStep& op);
  void run(const SgdStep& op);
  void run(const GuardStep& op);
  void run(const RouterForward& op);
  void run(const RouterBackwardInput& op);
  void run(const RouterBackwardWeight& op);
  void run(const RouterChoice& op);
  void run(const ExpertPlaces& op);
  void run(const GatherRows& op);
  void run(const CombineRows& op);
  void run(const CombineRowsBackward& op);
  void run(const GroupedLinearForward& op);
  void run(const GroupedLinearBackwardInput& op);
  void run(const GroupedLinearBackwardWeight& op);
  void run(const RouterStatistics& op);
  void run(const RouterGradient& op);
  void run(const TopTokens& op);
  void run(const PositiveTokens& op);
  void run(const Subtract& op);
  void run(const DepthPredictorLoss& op);
  void run(const MatrixProduct& op);
  void run(const ScaledSum& op);
  void run(const NormaliseMatrices& op);
  void run(const NesterovMomentum& op);
  void run(const CopyBlocks& op);
  void run(const MuonStep& op);

 private:
  static constexpr std::size_t max_partials = 1024;
  Kokkos::View<double*, Memory> partials_{"mylos::sum::partials", max_partials};  // of the sum in progress
  FewRows few_rows_;
};

}  // namespace mylos::compute_kokkos
