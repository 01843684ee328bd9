// SPDX-License-Identifier: BSD-3-Clause
// The guard's decision on a step: clip factor and skip flag, from the loss, the norm and the statistics of
// earlier steps.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/base/dtype.hpp"
#include "core/ops/step_scalars.hpp"

namespace mylos {

/// How gradients are clipped and which steps are not applied.
struct GuardConfig {
  /// Turns the reduced loss sum into the mean: 1 / (tokens of the global batch * ranks that add the same
  /// loss).
  float loss_factor = 1.0F;
  float clip_norm = 1.0F;           ///< global L2 norm; 0 turns clipping off
  float spike_factor = 0.0F;        ///< skip if the norm exceeds mean + factor * deviation; 0 turns this off
  std::int32_t spike_window = 100;  ///< window and warm-up of the running statistics, in steps
  /// The loss scale doubles after this many applied steps without a change of the scale; 0 keeps it constant.
  std::int32_t scale_window = 0;
};

/// The measurements of a step, summed over all ranks, so that a non-finite value of one rank reaches every
/// rank.
struct GuardInput {
  float loss_sum = 0.0F;      ///< over the tokens of the global batch, once per rank that has the same loss
  float norm_squared = 0.0F;  ///< of the scaled gradient, each element once
};

/// The guard's statistics of all steps so far; saved in checkpoints.
struct GuardState {
  double mean = 0.0;  ///< running mean of the gradient norm
  double variance = 0.0;
  std::int64_t seen = 0;     ///< applied steps that entered the statistics
  std::int64_t skipped = 0;  ///< skipped steps in total
  /// Skipped steps in a row, not counting overflows that a smaller loss scale may cure.
  std::int64_t skipped_in_row = 0;
  float loss_scale = 1.0F;         ///< of the next step
  std::int32_t scaled_in_row = 0;  ///< applied steps that count towards the next doubling
};

inline constexpr float largest_loss_scale = 16777216.0F;  // 2^24

/// Fills `scalars`, except `step` and `learning_rate`, and updates `state`. A non-finite loss or norm, or a
/// norm above the spike limit after the warm-up, skips the step; skipped steps never enter the mean and
/// variance. The loss scale changes only if scale_window is not 0 (Micikevicius et al., "Mixed precision
/// training", 2018): a non-finite norm with a finite loss halves it, down to 1; scale_window applied steps
/// without a change double it, up to 2^24.
MYLOS_HOST_DEVICE inline void guard_update(const GuardConfig& config, const GuardInput& input,
                                           GuardState& state, StepScalars& scalars) {
  const float inverse_scale = 1.0F / scalars.loss_scale;
  const float norm = std::sqrt(input.norm_squared) * inverse_scale;
  scalars.loss = input.loss_sum * config.loss_factor;
  scalars.gradient_norm = norm;
  const bool finite = std::isfinite(norm) && std::isfinite(scalars.loss);
  const bool warm = state.seen >= config.spike_window;
  const bool spike = finite && warm && config.spike_factor > 0.0F &&
                     norm > state.mean + config.spike_factor * std::sqrt(state.variance);
  scalars.skip = !finite || spike ? 1 : 0;
  if (scalars.skip != 0) {
    scalars.clip_factor = 0.0F;
    ++state.skipped;
    const bool overflows = config.scale_window > 0 && !std::isfinite(norm) && std::isfinite(scalars.loss) &&
                           state.loss_scale > 1.0F;
    if (overflows) {
      scalars.loss_scale = state.loss_scale = std::fmax(0.5F * state.loss_scale, 1.0F);
      state.scaled_in_row = 0;
    } else {
      ++state.skipped_in_row;
    }
    return;
  }
  const bool clips = config.clip_norm > 0.0F && norm > config.clip_norm;
  scalars.clip_factor = inverse_scale * (clips ? config.clip_norm / norm : 1.0F);
  const double rate =
      1.0 / static_cast<double>(state.seen < config.spike_window ? state.seen + 1 : config.spike_window);
  const double difference = norm - state.mean;
  state.mean += rate * difference;
  state.variance = (1.0 - rate) * (state.variance + rate * difference * difference);
  ++state.seen;
  state.skipped_in_row = 0;
  if (config.scale_window > 0 && ++state.scaled_in_row >= config.scale_window) {
    scalars.loss_scale = state.loss_scale = std::fmin(2.0F * state.loss_scale, largest_loss_scale);
    state.scaled_in_row = 0;
  }
}

}  // namespace mylos
