// SPDX-License-Identifier: BSD-3-Clause
#include "core/ops/grad_guard.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace mylos {
namespace {

constexpr float infinite_norm = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// One step with the given norm of the scaled gradient, loss and loss scale.
StepScalars guard_step(const GuardConfig& config, GuardState& state, float norm, float loss = 1.0F,
                       float loss_scale = 1.0F) {
  StepScalars scalars;
  scalars.loss_scale = loss_scale;
  guard_update(config, {.loss_sum = loss, .norm_squared = norm * norm}, state, scalars);
  return scalars;
}

TEST(GradGuard, ClipsToTheNorm) {
  GuardState state;
  EXPECT_FLOAT_EQ(guard_step({}, state, 0.5F).clip_factor, 1.0F);
  EXPECT_FLOAT_EQ(guard_step({}, state, 1.0F).clip_factor, 1.0F);
  EXPECT_FLOAT_EQ(guard_step({}, state, 4.0F).clip_factor, 0.25F);
  EXPECT_FLOAT_EQ(guard_step({.clip_norm = 2.0F}, state, 4.0F).clip_factor, 0.5F);
  EXPECT_FLOAT_EQ(guard_step({.clip_norm = 0.0F}, state, 4.0F).clip_factor, 1.0F);
}

TEST(GradGuard, ReportsMeanLossAndUnscaledNorm) {
  GuardState state;
  const GuardConfig config{.loss_factor = 0.01F};
  const StepScalars scalars = guard_step(config, state, 32.0F, 250.0F, 8.0F);
  EXPECT_FLOAT_EQ(scalars.loss, 2.5F);
  EXPECT_FLOAT_EQ(scalars.gradient_norm, 4.0F);        // sqrt(1024) / 8
  EXPECT_FLOAT_EQ(scalars.clip_factor, 0.25F / 8.0F);  // clips and unscales
}

TEST(GradGuard, SkipsStepsThatAreNotFinite) {
  GuardState state;
  for (const float bad : {nan, infinite_norm, -infinite_norm}) {
    EXPECT_EQ(guard_step({}, state, bad).skip, 1);
    EXPECT_EQ(guard_step({}, state, 1.0F, bad).skip, 1);
  }
  EXPECT_EQ(state.seen, 0);
  EXPECT_EQ(state.skipped, 6);
  EXPECT_EQ(state.skipped_in_row, 6);
  EXPECT_EQ(guard_step({}, state, nan).clip_factor, 0.0F);
  EXPECT_EQ(guard_step({}, state, 1.0F).skip, 0);
  EXPECT_EQ(state.skipped_in_row, 0);
  EXPECT_EQ(state.skipped, 7);
}

TEST(GradGuard, DynamicLossScaleHalvesAndDoubles) {
  const GuardConfig config{.scale_window = 3};
  GuardState state;
  state.loss_scale = 16.0F;
  StepScalars scalars;
  scalars.loss_scale = state.loss_scale;
  const auto take = [&](float norm, float loss = 1.0F) {
    guard_update(config, {.loss_sum = loss, .norm_squared = norm * norm}, state, scalars);
    EXPECT_EQ(scalars.loss_scale, state.loss_scale);
    return scalars;
  };
  EXPECT_EQ(take(infinite_norm).skip, 1);
  EXPECT_EQ(state.loss_scale, 8.0F);
  EXPECT_EQ(take(nan).skip, 1);
  EXPECT_EQ(state.loss_scale, 4.0F);
  EXPECT_EQ(state.skipped, 2);
  EXPECT_EQ(state.skipped_in_row, 0) << "a smaller scale may cure it";
  EXPECT_FLOAT_EQ(take(2.0F).gradient_norm, 0.5F) << "unscaled by what the loss was multiplied with";
  EXPECT_FLOAT_EQ(scalars.clip_factor, 0.25F);
  take(2.0F);
  EXPECT_EQ(state.loss_scale, 4.0F);
  take(2.0F);
  EXPECT_EQ(state.loss_scale, 8.0F) << "three applied steps";
  take(2.0F);
  take(infinite_norm);
  EXPECT_EQ(state.loss_scale, 4.0F);
  take(2.0F);
  take(2.0F);
  EXPECT_EQ(state.loss_scale, 4.0F) << "an overflow starts the count again";
  EXPECT_EQ(take(2.0F, nan).skip, 1);
  EXPECT_EQ(state.loss_scale, 4.0F) << "the loss itself is not scaled when it is summed";
  EXPECT_EQ(state.skipped_in_row, 1);
  for (int i = 0; i < 5; ++i) take(infinite_norm);
  EXPECT_EQ(state.loss_scale, 1.0F);
  EXPECT_EQ(state.skipped_in_row, 4) << "at 1 there is nothing left to halve";
}

TEST(GradGuard, LossScaleStaysBelowItsLimit) {
  const GuardConfig config{.scale_window = 1};
  GuardState state;
  StepScalars scalars;
  for (int i = 0; i < 40; ++i) guard_update(config, {.loss_sum = 1.0F, .norm_squared = 1.0F}, state, scalars);
  EXPECT_EQ(state.loss_scale, largest_loss_scale);
}

TEST(GradGuard, FixedLossScaleIsKept) {
  GuardState state;
  state.loss_scale = 8.0F;
  StepScalars scalars;
  scalars.loss_scale = 8.0F;
  guard_update({}, {.loss_sum = 1.0F, .norm_squared = infinite_norm}, state, scalars);
  EXPECT_EQ(scalars.loss_scale, 8.0F);
  EXPECT_EQ(state.skipped_in_row, 1);
}

TEST(GradGuard, SkipsSpikesAfterTheWarmUp) {
  const GuardConfig config{.spike_factor = 4.0F, .spike_window = 20};
  GuardState state;
  EXPECT_EQ(guard_step(config, state, 1e4F).skip, 0) << "nothing is known yet";
  state = {};
  for (int i = 0; i < 20; ++i) EXPECT_EQ(guard_step(config, state, i % 2 == 0 ? 0.9F : 1.1F).skip, 0);
  EXPECT_NEAR(state.mean, 1.0, 1e-3);
  EXPECT_NEAR(state.variance, 0.01, 1e-3);
  const GuardState before = state;
  EXPECT_EQ(guard_step(config, state, 1.5F).skip, 1);
  EXPECT_EQ(state.mean, before.mean) << "a spike does not enter the statistics";
  EXPECT_EQ(state.variance, before.variance);
  EXPECT_EQ(state.seen, before.seen);
  EXPECT_EQ(guard_step(config, state, 1.3F).skip, 0);
  EXPECT_EQ(guard_step({.spike_window = 20}, state, 100.0F).skip, 0) << "off";
}

TEST(GradGuard, ForgetsBeyondTheWindow) {
  const GuardConfig config{.spike_window = 10};
  GuardState state;
  for (int i = 0; i < 10; ++i) guard_step(config, state, 1.0F);
  for (int i = 0; i < 100; ++i) guard_step(config, state, 3.0F);
  EXPECT_NEAR(state.mean, 3.0, 1e-3);
}

}  // namespace
}  // namespace mylos
