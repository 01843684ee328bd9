// SPDX-License-Identifier: BSD-3-Clause
// Training steps on a device: the host queues work ahead of the device, and reads the results of one step
// while the device works on the next.
#include <chrono>

#include <gtest/gtest.h>

#include "core/memory/device_buffer.hpp"
#include "core/memory/device_graph.hpp"
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
    config.guard.scale_window = 2;
  }
  return config;
}

/// Runs both trainers on the same tokens; the results of `late` are read one step late.
void expect_same_steps(const RunConfig& run, MiniTrainer& at_once, MiniTrainer& late) {
  const auto begin = std::chrono::steady_clock::now();
  double seconds = 0.0;
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
    seconds += seen.seconds;
    for (const double of_phase : seen.phase_seconds) EXPECT_GE(of_phase, 0.0);
  }
  // The times of the steps add up to no more than the time elapsed.
  EXPECT_LE(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  for (const Parameter& parameter : at_once.table().parameters()) {
    EXPECT_EQ(late.weight(parameter.name), at_once.weight(parameter.name)) << parameter.name;
  }
}

class TrainingStepTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!host_.host_accessible()) GTEST_SKIP() << "the distant device computes on a host";
  }

  ComputeBackend& host_ = test_backends().at("kokkos");
  DistantBackend device_{host_};
  std::unique_ptr<Communicator> of_host_ = open_communicator("self", &host_);
  std::unique_ptr<Communicator> of_device_ = open_communicator("self", &device_);
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
      // With several micro-batches the host waits for one of two upload buffers of tokens.
      EXPECT_TRUE(accumulation > 1 || (waits_in_step == 0 && waits == 1)) << waits_in_step << ", " << waits;
      EXPECT_EQ(device_.device().num_idle(), idle);
    }
    trainer.read();
    EXPECT_EQ(device_.device().num_idle(), idle + 1);
  }
}

TEST_F(TrainingStepTest, GivesTheSameResultsOneStepLate) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const auto& [accumulation, graphs] :
         {std::pair(1, false), std::pair(2, false), std::pair(2, true)}) {
      SCOPED_TRACE(fmt::format("{}, {} micro-batches, graphs: {}", name_of(dtype), accumulation, graphs));
      RunConfig run = config(accumulation, dtype);
      MiniTrainer at_once(host_, ledger_, *of_host_, run);
      run.graphs = graphs;
      MiniTrainer late(device_, ledger_, *of_device_, run);
      expect_same_steps(run, at_once, late);
    }
  }
}

TEST_F(TrainingStepTest, RoundsStochasticallyInGraphs) {
  RunConfig run = config(1, DType::bf16);
  run.optimizer.keeps_master = false;
  MiniTrainer at_once(host_, ledger_, *of_host_, run);
  run.graphs = true;
  MiniTrainer late(device_, ledger_, *of_device_, run);
  expect_same_steps(run, at_once, late);
}

TEST_F(TrainingStepTest, RecordsEachActionOnce) {
  RunConfig run = config(2);
  run.graphs.reset();             // this device can record
  constexpr int num_actions = 5;  // forward and backward of two micro-batches, step
  MiniTrainer trainer(device_, ledger_, *of_device_, run);
  std::int64_t step = 0;
  const auto captures = [&] { return device_.device().num_captures(); };
  const auto run_step = [&] { trainer.step(walk_tokens(run, ++step)); };
  run_step();
  EXPECT_EQ(captures(), 0);
  run_step();
  EXPECT_EQ(captures(), num_actions);
  run_step();
  EXPECT_EQ(captures(), num_actions);
  device_.allocate(1, "memory that a graph may have used").reset();
  run_step();
  EXPECT_EQ(captures(), 2 * num_actions);
  trainer.trace().start();
  run_step();
  trainer.trace().stop();
  EXPECT_GT(profile_of(trainer.trace()).operations.size(), 10U);
  run_step();
  EXPECT_EQ(captures(), 2 * num_actions);
}

TEST_F(TrainingStepTest, DiscardsARecordingThatThrows) {
  DeviceGraph graph(device_);
  const DeviceBuffer x(device_, ledger_, MemoryCategory::workspace, sizeof(float), "mylos::tests::x");
  const TensorRef value(x.data(), DType::fp32, {1});
  device_.run(Fill{.y = value, .value = 1.0F});
  EXPECT_THROW(graph.queue([&] {
    device_.run(Fill{.y = value, .value = 2.0F});
    device_.synchronize();  // forbidden during the recording
  }),
               Error);
  const auto read = [&] {
    float number = 0.0F;
    device_.copy_to_host(x.data(), &number, sizeof number);
    device_.synchronize();
    return number;
  };
  EXPECT_EQ(read(), 1.0F);
  graph.queue([&] { device_.run(Fill{.y = value, .value = 3.0F}); });
  EXPECT_EQ(read(), 3.0F);
}

TEST_F(TrainingStepTest, RefusesGraphsOnADeviceThatCannotRecord) {
  RunConfig run = config(1);
  run.graphs = true;
  try {
    MiniTrainer trainer(host_, ledger_, *of_host_, run);
    FAIL() << "the host records nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("[backend] graphs = true needs a GPU"), std::string::npos);
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

/// Every backend that records work.
class GraphsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!backend_.can_capture()) GTEST_SKIP() << GetParam() << " cannot record graphs";
  }

  ComputeBackend& backend_ = test_backends().at(GetParam());
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  MemoryLedger ledger_;
};

TEST_P(GraphsTest, GiveTheSameResults) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const float dropout : {0.0F, 0.1F}) {
      SCOPED_TRACE(fmt::format("{}, dropout {}", name_of(dtype), dropout));
      RunConfig run = config(2, dtype);
      run.model.dropout = dropout;
      MiniTrainer kernel_by_kernel(backend_, ledger_, *self_, run);
      run.graphs = true;
      MiniTrainer whole(backend_, ledger_, *self_, run);
      expect_same_steps(run, kernel_by_kernel, whole);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GraphsTest, testing::ValuesIn(compute_backend_names()), backend_test_name);

}  // namespace
}  // namespace mylos
