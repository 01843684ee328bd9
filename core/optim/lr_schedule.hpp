// SPDX-License-Identifier: BSD-3-Clause
// The learning rate as a function of the step.
#pragma once

#include <cstdint>

namespace mylos {

enum class LrDecay : std::uint8_t {
  constant,
  linear,
  cosine,
  wsd,  ///< warmup, stable, decay (Hu et al., MiniCPM, 2024): linear to `min` over the last `decay_steps`
};

struct LrScheduleConfig {
  LrDecay decay = LrDecay::cosine;
  double peak = 6e-4;
  double min = 6e-5;
  std::int64_t warmup = 0;       ///< steps of linear rise from 0
  std::int64_t steps = 1;        ///< all steps of the run
  std::int64_t decay_steps = 0;  ///< for wsd, at least 1
};

/// Returns the learning rate of `step`; the first step is 1. Step `warmup` has the peak. Step `steps`, if it
/// comes after the warm-up, has the minimum, unless the decay is constant.
double learning_rate(const LrScheduleConfig& config, std::int64_t step);

}  // namespace mylos
