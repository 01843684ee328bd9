// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/lr_schedule.hpp"

#include <gtest/gtest.h>

namespace mylos {
namespace {

LrScheduleConfig schedule(LrDecay decay) {
  return {.decay = decay, .peak = 1e-3, .min = 1e-4, .warmup = 10, .steps = 110, .decay_steps = 20};
}

constexpr LrDecay decays[] = {LrDecay::constant, LrDecay::linear, LrDecay::cosine, LrDecay::wsd};

TEST(LrSchedule, RisesLinearlyToThePeak) {
  for (const LrDecay decay : decays) {
    for (std::int64_t step = 1; step <= 10; ++step) {
      EXPECT_DOUBLE_EQ(learning_rate(schedule(decay), step), 1e-4 * static_cast<double>(step));
    }
  }
}

TEST(LrSchedule, EndsAtTheMinimum) {
  for (const LrDecay decay : decays) {
    const double last = decay == LrDecay::constant ? 1e-3 : 1e-4;
    EXPECT_DOUBLE_EQ(learning_rate(schedule(decay), 110), last);
    EXPECT_DOUBLE_EQ(learning_rate(schedule(decay), 1000), last);
  }
}

TEST(LrSchedule, NeverRisesAfterTheWarmup) {
  for (const LrDecay decay : decays) {
    for (std::int64_t step = 11; step <= 110; ++step) {
      EXPECT_LE(learning_rate(schedule(decay), step), learning_rate(schedule(decay), step - 1)) << step;
    }
  }
}

TEST(LrSchedule, IsHalfwayInTheMiddle) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(LrDecay::linear), 60), 5.5e-4);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(LrDecay::cosine), 60), 5.5e-4);
  EXPECT_NEAR(learning_rate(schedule(LrDecay::cosine), 35), 1e-4 + 4.5e-4 * (1.0 + 0.70710678), 1e-9);
}

TEST(LrSchedule, StaysAtThePeakBeforeTheDecayOfWsd) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(LrDecay::wsd), 90), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(LrDecay::wsd), 100), 5.5e-4);
  LrScheduleConfig longer = schedule(LrDecay::wsd);
  longer.decay_steps = 1000;
  EXPECT_DOUBLE_EQ(learning_rate(longer, 10), 1e-3) << "also if the decay would begin within the warmup";
}

TEST(LrSchedule, StartsAtThePeakWithoutWarmup) {
  for (const LrDecay decay : decays) {
    LrScheduleConfig config = schedule(decay);
    config.warmup = 0;
    EXPECT_GT(learning_rate(config, 1), 0.98e-3);
    config.warmup = 1;
    EXPECT_DOUBLE_EQ(learning_rate(config, 1), 1e-3);
  }
}

}  // namespace
}  // namespace mylos
