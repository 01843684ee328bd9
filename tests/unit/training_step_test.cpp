// SPDX-License-Identifier: BSD-3-Clause
// Training steps on a device: the host queues them without waiting, and reads the results of one while the
// device works on the next.
#include <gtest/gtest.h>

#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/distant_backend.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

constexpr std::int64_t num_steps = 6;

RunConfig config(std::int64_t accumulation, DType dtype = DType::fp32) {
  ModelConfig model;
  model.layers = 2;
  model.heads = 2;
  model.width = 32;
  model.context = 32;
  model.vocab = 257;
  model.dropout = 0.1F;
  RunConfig config = mini_config(model, 8, 32, 1, accumulation);
  config.train.dtype = dtype;
  if (dtype == DType::fp16) {
    config.train.loss_scale = largest_loss_scale;  // overflows
    config.guard.device.scale_window = 2;
  }
  return config;
}

class TrainingStepTest : public testing::Test {
 protected:
  ComputeBackend& host_ = test_backends(1).at("kokkos");
  DistantBackend device_{host_};
  CommunicatorHandle of_host_ = open_communicator("self", &host_);
  CommunicatorHandle of_device_ = open_communicator("self", &device_);
  MemoryLedger ledger_;
};

TEST_F(TrainingStepTest, NeverLeavesTheDeviceIdle) {
  for (const std::int64_t accumulation : {1, 2, 4}) {
    SCOPED_TRACE(accumulation);
    const RunConfig run = config(accumulation);
    MiniTrainer trainer(device_, ledger_, *of_device_, run);
    const int idle = device_.device().num_idle();
    trainer.run(walk_tokens(run, 1));
    for (std::int64_t step = 2; step <= num_steps; ++step) {
      SCOPED_TRACE(step);
      const int before = device_.device().num_waits();
      trainer.run(walk_tokens(run, step));
      const int waits_in_step = device_.device().num_waits() - before;
      trainer.read();
      const int waits = device_.device().num_waits() - before;
      // Of more than one micro-batch it waits for the tokens: it is never more than two of them ahead.
      EXPECT_TRUE(accumulation > 1 || (waits_in_step == 0 && waits == 1)) << waits_in_step << ", " << waits;
      EXPECT_EQ(device_.device().num_idle(), idle);
    }
    trainer.read();
    EXPECT_EQ(device_.device().num_idle(), idle + 1);
  }
}

TEST_F(TrainingStepTest, GivesTheSameResultsOneStepLate) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t accumulation : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, {} micro-batches", name_of(dtype), accumulation));
      const RunConfig run = config(accumulation, dtype);
      MiniTrainer at_once(host_, ledger_, *of_host_, run);
      MiniTrainer late(device_, ledger_, *of_device_, run);
      late.run(walk_tokens(run, 1));
      for (std::int64_t step = 1; step <= num_steps; ++step) {
        at_once.run(walk_tokens(run, step));
        const StepResults& expected = at_once.read();
        if (step < num_steps) late.run(walk_tokens(run, step + 1));
        const StepResults& seen = late.read();
        EXPECT_EQ(seen.scalars.step, step);
        EXPECT_EQ(seen.scalars.loss, expected.scalars.loss);
        EXPECT_EQ(seen.scalars.learning_rate, expected.scalars.learning_rate);
        EXPECT_EQ(seen.scalars.loss_scale, expected.scalars.loss_scale);
        EXPECT_EQ(seen.scalars.skip, expected.scalars.skip);
        EXPECT_EQ(seen.scalars.clip_factor, expected.scalars.clip_factor);
        EXPECT_EQ(seen.guard.mean, expected.guard.mean);
        EXPECT_EQ(seen.guard.skipped, expected.guard.skipped);
        EXPECT_GT(seen.seconds, 0.0);
        for (const double seconds : seen.phase_seconds) EXPECT_GE(seconds, 0.0);
      }
      for (const Parameter& parameter : at_once.table().parameters()) {
        EXPECT_EQ(late.weight(parameter.name), at_once.weight(parameter.name)) << parameter.name;
      }
    }
  }
}

TEST_F(TrainingStepTest, KeepsTwoStepsUnreadAtMost) {
  const RunConfig run = config(1);
  MiniTrainer trainer(device_, ledger_, *of_device_, run);
  trainer.run(walk_tokens(run, 1));
  trainer.run(walk_tokens(run, 2));
  EXPECT_THROW(trainer.run(walk_tokens(run, 3)), Error);
  EXPECT_EQ(trainer.read().scalars.step, 1);
  EXPECT_EQ(trainer.read().scalars.step, 2);
  EXPECT_THROW(trainer.read(), Error);
}

}  // namespace
}  // namespace mylos
