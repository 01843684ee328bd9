// SPDX-License-Identifier: BSD-3-Clause
// KokkosOperations: a kernel for every operation that is not fused, one file per kind.
#pragma once

#include "backends/compute_kokkos/views.hpp"
#include "core/ops/operation_table.hpp"

namespace mylos::compute_kokkos {

class KokkosOperations {
 public:
  using List =
      OperationList<Fill, Cast, FillNormal, Sum, SumOfSquares, LinearForward, LinearBackwardInput,
                    LinearBackwardWeight, EmbeddingForward, EmbeddingBackward, LayernormForward,
                    LayernormBackwardInput, LayernormBackwardWeight, GeluForward, GeluBackward, DropoutAdd,
                    AttentionForward, AttentionBackward, CrossEntropy, AdamWStep, SgdStep, GuardStep>;

  void run(Stream stream, const Fill& op);
  void run(Stream stream, const Cast& op);
  void run(Stream stream, const FillNormal& op);
  void run(Stream stream, const Sum& op);
  void run(Stream stream, const SumOfSquares& op);
  void run(Stream stream, const LinearForward& op);
  void run(Stream stream, const LinearBackwardInput& op);
  void run(Stream stream, const LinearBackwardWeight& op);
  void run(Stream stream, const EmbeddingForward& op);
  void run(Stream stream, const EmbeddingBackward& op);
  void run(Stream stream, const LayernormForward& op);
  void run(Stream stream, const LayernormBackwardInput& op);
  void run(Stream stream, const LayernormBackwardWeight& op);
  void run(Stream stream, const GeluForward& op);
  void run(Stream stream, const GeluBackward& op);
  void run(Stream stream, const DropoutAdd& op);
  void run(Stream stream, const AttentionForward& op);
  void run(Stream stream, const AttentionBackward& op);
  void run(Stream stream, const CrossEntropy& op);
  void run(Stream stream, const AdamWStep& op);
  void run(Stream stream, const SgdStep& op);
  void run(Stream stream, const GuardStep& op);

 private:
  const Kokkos::View<double*, Memory>& partials_of(Stream stream) const;

  Queue default_queue_;
};

}  // namespace mylos::compute_kokkos
