// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mylos {

double learning_rate(const LrScheduleConfig& config, std::int64_t step) {
  if (step < config.warmup) {
    return config.peak * static_cast<double>(step) / static_cast<double>(config.warmup);
  }
  const std::int64_t begin = config.decay == LrDecay::wsd
                                 ? std::max(config.warmup, config.steps - config.decay_steps)
                                 : config.warmup;
  const double length = static_cast<double>(std::max<std::int64_t>(config.steps - begin, 1));
  const double progress = std::clamp(static_cast<double>(step - begin) / length, 0.0, 1.0);
  switch (config.decay) {
    case LrDecay::constant:
      return config.peak;
    case LrDecay::linear:
    case LrDecay::wsd:
      return config.peak + (config.min - config.peak) * progress;
    case LrDecay::cosine:
      return config.min + 0.5 * (config.peak - config.min) * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return config.peak;
}

}  // namespace mylos
