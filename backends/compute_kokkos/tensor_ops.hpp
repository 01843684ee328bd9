// SPDX-License-Identifier: BSD-3-Clause
// KokkosTensorOps: filling, casting, drawing and summing flat tensors.
#pragma once

#include "backends/compute_kokkos/views.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos::compute_kokkos {

class KokkosTensorOps final : public TensorOps {
 public:
  void fill(Stream stream, TensorRef y, float value) override;
  void cast(Stream stream, TensorRef x, TensorRef y) override;
  void fill_normal(Stream stream, TensorRef y, PhiloxKey key, const GlobalIndex& index,
                   float stddev) override;
  void sum(Stream stream, TensorRef x, TensorRef out, bool accumulate) override;
  void sum_of_squares(Stream stream, TensorRef x, float factor, TensorRef out, bool accumulate) override;

 private:
  const Kokkos::View<double*, Memory>& partials_of(Stream stream) const;

  Queue default_queue_;
};

}  // namespace mylos::compute_kokkos
