// SPDX-License-Identifier: BSD-3-Clause
// KokkosOptimizerOps: the optimizer's update and the guard that decides about it.
#pragma once

#include "core/ops/compute_backend.hpp"

namespace mylos::compute_kokkos {

class KokkosOptimizerOps final : public OptimizerOps {
 public:
  void adamw(Stream stream, const AdamWArgs& args) override;
  void guard_step(Stream stream, const GuardConfig& config, const GuardInput* input, GuardState* state,
                  StepScalars* scalars) override;
};

}  // namespace mylos::compute_kokkos
