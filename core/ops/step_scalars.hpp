// SPDX-License-Identifier: BSD-3-Clause
// StepScalars: the scalars that change from step to step. They lie in device memory, so that a recorded graph
// of a step stays valid.
#pragma once

#include <cstdint>

namespace mylos {

/// The host writes `step` and `learning_rate` before a step, and sets the first loss scale. GuardStep writes
/// later loss scales and the other members within the step.
struct StepScalars {
  std::int64_t step = 0;  ///< number of the step, from 1: Adam's t, and part of some Philox counters
  float learning_rate = 0.0F;

  /// The factor that multiplies the loss of the step before its gradient is taken; after GuardStep, the
  /// factor of the next step.
  float loss_scale = 1.0F;

  float clip_factor = 1.0F;    ///< multiplies every gradient: clipping and 1 / loss_scale
  float gradient_norm = 0.0F;  ///< global L2 norm before clipping, unscaled
  float loss = 0.0F;           ///< mean loss of the global batch, nats per token
  std::int32_t skip = 0;       ///< non-zero: the update must not be applied
};

}  // namespace mylos
