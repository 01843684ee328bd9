// SPDX-License-Identifier: BSD-3-Clause
// What the engine can run although no deck requests it yet: several chunks, deferred weight gradients,
// overlapping steps. Also errors, flops, collectives within a block and versions of weights.
#include <cstring>
#include <functional>
#include <set>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "core/communication/forwarding_communicator.hpp"
#include "core/ops/forwarding_backend.hpp"
#include "parallel/schedule/problems.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/distant_backend.hpp"
#include "tests/support/test_plugins.hpp"
#include "tests/support/test_schedules.hpp"

namespace mylos {
namespace {

using enum ActionKind;

RunConfig config(bool tied, Recompute recompute, std::int64_t accumulation) {
  ModelConfig model;
  model.layers = 3;
  model.heads = 2;
  model.width = 32;
  model.context = 32;
  model.vocab = 257;
  model.tied = tied;
  model.dropout = 0.1F;
  RunConfig config = mini_config(model, 8, 32, 1, accumulation);
  config.train.recompute = recompute;
  return config;
}

/// Supplies the tokens that belong to each step's number.
class WalkDriver final : public StepDriver {
 public:
  explicit WalkDriver(const RunConfig& config) : config_(config) {}
  void read_samples(std::int64_t step, std::int64_t first, std::span<std::int32_t> tokens) override {
    const std::vector<std::int32_t> all = walk_tokens(config_, step);
    const std::int64_t begin = first * (config_.train.seq_len + 1);
    std::copy_n(all.begin() + begin, tokens.size(), tokens.begin());
  }

 private:
  const RunConfig& config_;
};

class EngineTest : public testing::Test {
 protected:
  /// Losses and norms of `steps` steps, and the master weights after them.
  std::vector<float> run(RunConfig config, const ScheduleKind& kind, std::int64_t steps) {
    return run_on(backend_, *self_, std::move(config), kind, steps);
  }
  static std::vector<float> run_on(ComputeBackend& backend, Communicator& self, RunConfig config,
                                   const ScheduleKind& kind, std::int64_t steps) {
    config.parallel.schedule = &kind;
    const Schedule schedule = config.parallel.schedules(config.train.accumulation).front();
    EXPECT_EQ(find_problems({&schedule, 1}), std::vector<std::string>());
    MemoryLedger ledger;
    TrafficCounter traffic;
    Trace trace(backend);
    ProcessGrid grid(self, {}, ParallelLayout().groups(), traffic, nullptr, backend.host_accessible());
    const RankProgram program(config, grid.coordinates());
    TrainingStep training(backend, ledger, grid, program, trace);
    training.initialise();
    WalkDriver driver(config);
    std::vector<float> results;
    for (std::int64_t step = 1; step <= steps; ++step) {
      // The run pauses after step 3, with nothing under way.
      training.run(step, step <= 3 ? 3 : steps, driver);
      training.read_results();
      EXPECT_EQ(training.results().scalars.step, step);
      results.push_back(training.results().scalars.loss);
      results.push_back(training.results().scalars.gradient_norm);
    }
    for (std::size_t i = 0; i < training.state().owned().size(); ++i) {
      const TensorRef master = training.state().master(i);
      const std::size_t begin = results.size();
      results.resize(begin + static_cast<std::size_t>(master.size()));
      backend.copy_to_host(master.data, results.data() + begin, master.bytes());
      backend.synchronize();
    }
    return results;
  }

  ComputeBackend& backend_ = test_backends().at("kokkos");
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
};

const ScheduleKind two_chunks{
    .name = "two chunks", .doc = "", .chunks = 2, .make = [](const ScheduleScope& /*scope*/) {
      return std::vector{Schedule{.actions = {{forward, 0, 0},
                                              {forward, 1, 0},
                                              {forward, 0, 1},
                                              {backward, 0, 1},
                                              {forward, 1, 1},
                                              {backward, 0, 0},
                                              {backward, 1, 1},
                                              {backward, 1, 0},
                                              {reduce},
                                              {step}},
                                  .micro_batches = 2,
                                  .chunks = 2}};
    }};

const ScheduleKind ahead{
    .name = "ahead", .doc = "", .make = [](const ScheduleScope& /*scope*/) {
      return std::vector{Schedule{.actions = {{forward, 0, 0, 1}, {backward, 0}, {reduce}, {step}},
                                  .rules = {{.micro_batches = 1, .delay = 1}}}};
    }};

/// Fails in the forward pass of the embedding.
class FailingBackend final : public ForwardingBackend {
 public:
  explicit FailingBackend(ComputeBackend& next) : ForwardingBackend(next) {
    add_operations(OperationList<EmbeddingForward>(), *this, "failing");
  }
  bool run(const EmbeddingForward& /*op*/) { fail(ExitCode::internal, "the device is lost"); }
  using ForwardingBackend::run;
};

TEST_F(EngineTest, ErrorsOfOperationsNameTheirPlace) {
  FailingBackend failing(backend_);
  try {
    run_on(failing, *self_, config(true, Recompute::none, 1), *schedules().front(), 1);
    FAIL() << "the operation ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    EXPECT_THAT(error.what(),
                testing::MatchesRegex("core/model/embedding\\.cpp:[0-9]+: .*: the device is lost"));
  }
}

/// The products of GPT-2 take 2 operations per weight and token forward, 4 backward; block recomputation
/// repeats most of the blocks' forward passes.
TEST_F(EngineTest, CountsTheFlopsThatItExecutes) {
  const auto flops = [&](Recompute recompute, std::int64_t accumulation) {
    return RankProgram(config(true, recompute, accumulation), {}).flops_per_step();
  };
  const RunConfig run = config(true, Recompute::none, 1);
  const auto tokens = static_cast<double>(run.train.global_batch * run.train.seq_len);
  const double width = 32.0;
  const double products_of_blocks = 3 * 12 * width * width;
  // Multiply-adds per token in attention's two matrix products; causal attention needs half of them.
  const double attention = 3 * 2 * width * 32.0;
  const double none = flops(Recompute::none, 1);
  EXPECT_GT(none, 6.0 * tokens * (products_of_blocks + 257 * width));
  const double repeated = flops(Recompute::block, 1) - none;
  EXPECT_GT(repeated, 2.0 * tokens * products_of_blocks * 0.6);
  EXPECT_LT(repeated, 2.0 * tokens * (products_of_blocks + attention) * 1.2);
  EXPECT_EQ(flops(Recompute::none, 2), none);
}

TEST_F(EngineTest, ChunksComputeWhatTheWholeDoes) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::block}) {
    const RunConfig whole = config(true, recompute, 2);
    EXPECT_EQ(run(whole, two_chunks, 4), run(whole, *schedules().front(), 4)) << static_cast<int>(recompute);
  }
}

TEST_F(EngineTest, DeferredWeightGradientsAreTheSame) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::block}) {
    // A tied matrix would sum its terms in another order.
    const RunConfig whole = config(false, recompute, 2);
    EXPECT_EQ(run(whole, deferred_weights, 4), run(whole, *schedules().front(), 4))
        << static_cast<int>(recompute);
  }
}

/// At learning rate 0 weights are never stale, but each step has its own number, tokens and dropout.
TEST_F(EngineTest, StepsThatOverlapDoNotMix) {
  RunConfig still = config(true, Recompute::none, 1);
  still.lr.peak = 0.0;
  EXPECT_EQ(run(still, ahead, 7), run(still, *schedules().front(), 7));
  // A graph refers to the memory of the step for which it was recorded.
  DistantBackend device(backend_);
  const std::unique_ptr<Communicator> self = open_communicator("self", &device);
  RunConfig recorded = still;
  recorded.graphs = true;
  EXPECT_EQ(run_on(device, *self, recorded, ahead, 7), run(still, ahead, 7));
  RunConfig learning = config(true, Recompute::none, 1);
  EXPECT_NE(run(learning, ahead, 7), run(learning, *schedules().front(), 7));
}

/// Counts all-reduces.
class CountingCommunicator final : public ForwardingCommunicator {
 public:
  explicit CountingCommunicator(Communicator& next) : ForwardingCommunicator(next) {}
  Request all_reduce(TensorRef buffer, ReduceOp op) override {
    ++count;
    return next().all_reduce(buffer, op);
  }
  std::unique_ptr<Communicator> split(int /*color*/, int /*key*/) override {
    return std::make_unique<ForwardingCommunicator>(NextCommunicator(static_cast<Communicator&>(*this)));
  }
  int count = 0;
};

/// ddp, with a collective in the middle of the first forward pass.
const ExchangeKind communicating{
    .name = "communicating",
    .doc = "",
    .params = {},
    .shards = false,
    .lower = [](const ParamValues& values, Lowering& lowering) {
      Pass& forward_pass = *lowering.step.front();
      const std::vector<Entry>& entries = forward_pass.program->entries;
      for (std::size_t i = 0; i < entries.size(); ++i) {
        const auto* attention = std::get_if<AttentionForward>(&entries[i].operation);
        if (attention == nullptr) continue;
        const int call = lowering.add(AllReduceCall{.buffer = attention->output.flat(), .group = all_axes});
        Lowering::after(forward_pass, i, call);
        break;
      }
      return exchanges().front()->lower(values, lowering);
    }};

/// A collective within a pass is called in every step, even if the rest of the pass is queued as graphs.
TEST_F(EngineTest, PassesMayCommunicate) {
  RunConfig run = config(true, Recompute::none, 1);
  const std::vector<std::int32_t> tokens = walk_tokens(run, 1);
  DistantBackend device(backend_);
  const std::unique_ptr<Communicator> self = open_communicator("self", &device);
  CountingCommunicator world(*self);
  const auto losses = [&](bool communicates, bool graphs) {
    run.parallel.exchange = communicates ? &communicating : exchanges().front();
    run.graphs = graphs;
    MemoryLedger ledger;
    MiniTrainer trainer(device, ledger, world, run);
    std::vector<float> sums;
    for (std::int64_t step = 1; step <= 3; ++step) sums.push_back(trainer.step(tokens).loss);
    return sums;
  };
  const std::vector<float> expected = losses(false, false);
  EXPECT_EQ(world.count, 0);
  EXPECT_EQ(losses(true, false), expected);
  EXPECT_EQ(world.count, 3);
  const int before = device.device().num_captures();
  EXPECT_EQ(losses(true, true), expected);
  EXPECT_EQ(world.count, 6);
  // Four graphs: the forward pass before the call, the forward pass after it, the backward pass, the update.
  EXPECT_EQ(device.device().num_captures() - before, 4);
}

/// Backends identify packed copies of weights by address and version.
TEST_F(EngineTest, AVersionOfWeightsHasOneContent) {
  const RunConfig run = config(true, Recompute::none, 1);
  MemoryLedger ledger;
  std::multiset<std::uint64_t> versions;
  for (int i = 0; i < 2; ++i) {
    MiniTrainer trainer(backend_, ledger, *self_, run);
    for (int step = 0; step < 4; ++step) {
      for (int unit = 0; unit < trainer.table().num_units(); ++unit)
        versions.insert(trainer.executor().version(unit));
      if (step % 2 == 0) trainer.step(walk_tokens(run, 1));
      if (step % 2 == 1) trainer.state().publish();
    }
  }
  for (const std::uint64_t version : versions) EXPECT_EQ(versions.count(version), 1U) << version;
  EXPECT_FALSE(versions.contains(0));
}

}  // namespace
}  // namespace mylos
