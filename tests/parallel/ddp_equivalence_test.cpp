// SPDX-License-Identifier: BSD-3-Clause
// Data parallelism against one rank that computes the same global batch alone; recomputation and odd shapes.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/parallel/equivalence.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

class DdpEquivalence : public testing::Test {
 protected:
  Outcome run(Communicator& communicator, const RunConfig& config, std::int64_t steps) {
    return train(backend_, communicator, config, steps);
  }

  Outcome run_alone(const RunConfig& config, std::int64_t steps) {
    return train_alone(backend_, *self_, config, steps);
  }

  int ranks() const { return world_->size(); }

  RunConfig parallel_config() const {
    RunConfig config = mini_config(small_model(), global_batch, 37, ranks(), ranks() < 4 ? 2 : 1);
    set_ddp(config, "bucketed", 0.01);
    return config;
  }

  /// Trains with gradients in fp32 and in the type of `config`. Expects losses and norms to differ from those
  /// of one rank in fp32 by at most these relative errors.
  std::vector<Outcome> expect_near_fp32(RunConfig config, double loss_error, double norm_error) {
    constexpr std::int64_t steps = 10;
    const Outcome oracle = run_alone(mini_config(small_model(), global_batch, 37), steps);
    std::vector<Outcome> outcomes;
    for (const DType gradient : {DType::fp32, config.train.dtype}) {
      SCOPED_TRACE(name_of(gradient));
      config.train.grad_dtype = gradient;
      const Outcome& outcome = outcomes.emplace_back(run(*world_, config, steps));
      for (std::size_t step = 0; step < oracle.steps.size(); ++step) {
        EXPECT_NEAR(outcome.steps[step].loss / oracle.steps[step].loss, 1.0, loss_error)
            << "step " << step + 1;
        EXPECT_NEAR(outcome.steps[step].gradient_norm / oracle.steps[step].gradient_norm, 1.0, norm_error);
      }
    }
    return outcomes;
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

struct Mode {
  std::string_view name;
  double bucket_mb;
};

/// In SendsExactlyWhatTheFormulaSays the gradients of a norm and a projection take 8932 bytes in fp32: more
/// than 0.0087 MB, less than 0.0087 MiB. They fill a bucket of 0.006 MiB, but not in 2 bytes each.
constexpr Mode modes[] = {{"per_parameter", 25.0}, {"flat", 25.0},       {"overlapped", 25.0},
                          {"bucketed", 0.006},     {"bucketed", 0.0087}, {"bucketed", 25.0}};

TEST_F(DdpEquivalence, EveryModeComputesWhatOneRankDoes) {
  constexpr std::int64_t steps = 20;
  const Outcome oracle = run_alone(mini_config(small_model(), global_batch, 37), steps);
  EXPECT_LT(oracle.steps.back().loss, oracle.steps.front().loss);
  for (const Mode& mode : modes) {
    SCOPED_TRACE(mode.name);
    RunConfig config = mini_config(small_model(), global_batch, 37, ranks());
    set_ddp(config, mode.name, mode.bucket_mb);
    expect_equal_to_rounding(config, run(*world_, config, steps), oracle);
  }
}

TEST_F(DdpEquivalence, AccumulationComputesWhatOneBatchDoes) {
  constexpr std::int64_t steps = 20;
  const Outcome oracle = run_alone(mini_config(small_model(), global_batch, 37), steps);
  for (const std::int64_t accumulation : {2, 3}) {
    if (global_batch % (accumulation * ranks()) != 0) continue;
    SCOPED_TRACE(accumulation);
    RunConfig config = mini_config(small_model(), global_batch, 37, ranks(), accumulation);
    set_ddp(config, "bucketed", 0.01);
    expect_equal_to_rounding(config, run(*world_, config, steps), oracle);
  }
}

/// The bounds hang on no seed.
TEST_F(DdpEquivalence, OtherInitialWeightsAreAsClose) {
  constexpr std::int64_t steps = 10;
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    RunConfig whole = mini_config(small_model(), global_batch, 37);
    RunConfig config = parallel_config();
    whole.train.seed = config.train.seed = seed;
    expect_equal_to_rounding(config, run(*world_, config, steps), run_alone(whole, steps));
  }
}

TEST_F(DdpEquivalence, SlicesOfLogitsComputeWhatAllLogitsDo) {
  constexpr std::int64_t steps = 3;
  const Outcome oracle = run_alone(mini_config(small_model(), global_batch, 37), steps);
  RunConfig config = mini_config(small_model(), global_batch, 37, ranks());
  config.model.logits_bytes = 0;  // slices of 64 rows
  expect_equal_to_rounding(config, run(*world_, config, steps), oracle);
}

class DdpVariants : public DdpEquivalence, public testing::WithParamInterface<Variant> {};

TEST_P(DdpVariants, ComputeWhatOneRankDoes) {
  constexpr std::int64_t steps = 5;
  const Outcome oracle = run_alone(config_of(GetParam(), 1), steps);
  const RunConfig config = config_of(GetParam(), ranks());
  expect_equal_to_rounding(config, run(*world_, config, steps), oracle);
}

TEST_P(DdpVariants, AreBitwiseTheSameIfActivationsAreRecomputed) {
  constexpr std::int64_t steps = 3;
  RunConfig config = config_of(GetParam(), ranks(), 12 / ranks() % 2 == 0 ? 2 : 1);
  const Outcome kept = run(*world_, config, steps);
  for (const Recompute recompute : {Recompute::selective, Recompute::block}) {
    SCOPED_TRACE(static_cast<int>(recompute));
    config.train.recompute = recompute;
    expect_bitwise_equal(run(*world_, config, steps), kept);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DdpVariants, testing::ValuesIn(variants),
                         [](const auto& variant) { return std::string(variant.param.name); });

TEST_F(DdpEquivalence, DropoutZeroesSomething) {
  RunConfig config = mini_config(small_model(), global_batch, 37);
  const float loss = run_alone(config, 1).steps[0].loss;
  config.model.dropout = 0.2F;
  EXPECT_NE(run_alone(config, 1).steps[0].loss, loss);
}

TEST_F(DdpEquivalence, TrainsInBf16WithGradientsOfEitherType) {
  RunConfig config = parallel_config();
  config.train.dtype = DType::bf16;
  expect_near_fp32(config, 1e-3, 3e-2);
}

TEST_F(DdpEquivalence, TrainsInFp16WithAScaledLoss) {
  RunConfig config = parallel_config();
  config.train.dtype = DType::fp16;
  config.train.loss_scale = 1024.0F;
  config.guard.scale_window = 3;
  for (const Outcome& outcome : expect_near_fp32(config, 2e-4, 4e-3)) {
    EXPECT_EQ(outcome.steps.back().loss_scale, 8192.0F) << "doubled after steps 3, 6 and 9";
  }
}

TEST_F(DdpEquivalence, TrainsWithoutAMaster) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    SCOPED_TRACE(name_of(dtype));
    RunConfig config = parallel_config();
    config.train.dtype = dtype;
    config.train.grad_dtype = dtype;
    config.train.loss_scale = dtype == DType::fp16 ? 1024.0F : 1.0F;
    config.optimizer.keeps_master = false;
    config.optimizer.seed = 2;
    const Outcome outcome = expect_near_fp32(config, 5e-4, 1e-2).back();
    expect_bitwise_equal(run(*world_, config, 10), outcome);
    config.optimizer.seed = 1;
    EXPECT_NE(run(*world_, config, 10).weights, outcome.weights) << "another seed";
  }
}

/// Without a progress thread, an all-reduce advances only if a rank calls `progress`, `test` or `wait`.
TEST_F(DdpEquivalence, AdvancesAllReducesAfterEveryBlock) {
  if (ranks() == 1) GTEST_SKIP() << "nothing is reduced";
  RunConfig config = mini_config(small_model(), global_batch, 37, ranks());
  set_ddp(config, "overlapped");
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *world_, config);
  trainer.trace().start();
  trainer.step(walk_tokens(config, 1));
  trainer.trace().stop();
  EXPECT_GE(std::ranges::count(trainer.trace().events(), std::string_view("progress"), &TraceEvent::name),
            config.model.layers);
}

/// Calls and bytes of one step, computed from the model's shape, the mode and the number of ranks.
struct Traffic {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  std::int64_t wire_bytes = 0;  // sent by one rank if rings are used
};

/// The sizes in elements of the gradients of a GPT-2, in groups that backward completes together: the head,
/// then the blocks from the last to the first, then the embedding.
std::vector<std::vector<std::int64_t>> gradient_groups(const ModelConfig& model) {
  const std::int64_t c = model.width;
  const std::int64_t matrix = (model.vocab + 127) / 128 * 128 * c;
  std::vector<std::vector<std::int64_t>> groups;
  if (!model.tied) groups.push_back({matrix});
  groups.push_back({c, c});
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    groups.insert(groups.end(),
                  {{4 * c * c, c}, {4 * c * c, 4 * c}, {c, c}, {c * c, c}, {3 * c * c, 3 * c}, {c, c}});
  }
  groups.push_back({matrix, model.context * c});
  return groups;
}

/// The traffic of a mode with gradients of `width` bytes each: bare tensors one by one, or ranges of the
/// buffer in which each tensor begins at a multiple of 64 elements. A bucket ends with a tensor, and the next
/// bucket begins with the padding after it; only the last bucket includes its trailing padding.
Traffic gradient_traffic(const ModelConfig& model, const Mode& mode, std::int64_t width, std::int64_t ranks,
                         std::int64_t rank) {
  const auto limit = static_cast<std::int64_t>(mode.bucket_mb * 1024.0 * 1024.0);
  const bool is_by_tensor = mode.name == "per_parameter" || mode.name == "overlapped";
  Traffic traffic;
  const auto reduce = [&](std::int64_t elements) {
    traffic.calls += 1;
    traffic.bytes += width * elements;
    traffic.wire_bytes += width * sent_by_ring_all_reduce(elements, ranks, rank);
  };
  const auto aligned = [](std::int64_t element) { return (element + 63) / 64 * 64; };
  std::int64_t complete = 0;  // elements
  std::int64_t reduced = 0;
  const std::vector<std::vector<std::int64_t>> groups = gradient_groups(model);
  for (const auto& group : groups) {
    for (const std::int64_t size : group) {
      if (is_by_tensor) reduce(size);
      complete = aligned(complete) + size;
    }
    if (&group == &groups.back()) complete = aligned(complete);
    if (mode.name == "bucketed" && width * (complete - reduced) >= limit) {
      reduce(complete - reduced);
      reduced = complete;
    }
  }
  if (!is_by_tensor && reduced < complete) reduce(complete - reduced);
  return traffic;
}

/// Types of the weights and of the gradients. Only the latter count, except that the guard's two numbers are
/// always fp32.
constexpr std::pair<DType, DType> types[] = {{DType::fp32, DType::fp32},
                                             {DType::bf16, DType::bf16},
                                             {DType::bf16, DType::fp32},
                                             {DType::fp16, DType::fp16}};

TEST_F(DdpEquivalence, SendsExactlyWhatTheFormulaSays) {
  constexpr std::int64_t steps = 2;
  const auto expect_formula = [&](const RunConfig& config, const Mode& mode) {
    const Sent sent = sent_by_rings(backend_, config, steps);
    if (ranks() == 1) {
      EXPECT_TRUE(sent.calls.empty());
      EXPECT_EQ(sent.wire_bytes, 0);
      return;
    }
    ASSERT_EQ(sent.calls.size(), 1U);
    const TrafficRow& row = sent.calls[0];
    EXPECT_EQ(row.axis, "data");
    EXPECT_EQ(row.operation, CommOperation::all_reduce);
    const auto width = config.train.grad_dtype == DType::fp32 ? 4 : 2;
    const Traffic expected = gradient_traffic(config.model, mode, width, ranks(), world_->rank());
    constexpr std::int64_t scalars = 2;  // loss sum and squared norm
    EXPECT_EQ(static_cast<std::int64_t>(row.calls), steps * (expected.calls + 1));
    EXPECT_EQ(static_cast<std::int64_t>(row.payload_bytes), steps * (expected.bytes + 4 * scalars));
    if (calls_are_checked) return;  // the checks send messages that count too
    const std::int64_t scalar_bytes = 4 * sent_by_ring_all_reduce(scalars, ranks(), world_->rank());
    EXPECT_EQ(sent.wire_bytes, steps * (expected.wire_bytes + scalar_bytes));
  };
  for (const auto& [dtype, grad_dtype] : types) {
    for (const bool tied : {true, false}) {
      for (const Mode& mode : modes) {
        for (const std::int64_t accumulation : {1, 2}) {
          SCOPED_TRACE(fmt::format("{}, accumulation {}, {}, {}, gradients {}", mode.name, accumulation,
                                   tied ? "tied" : "untied", name_of(dtype), name_of(grad_dtype)));
          ModelConfig model = small_model();
          model.width = 45;  // not a multiple of the alignment
          model.tied = tied;
          RunConfig config = mini_config(model, 2 * ranks(), 8, ranks(), accumulation);
          config.train.dtype = dtype;
          config.train.grad_dtype = grad_dtype;
          set_ddp(config, mode.name, mode.bucket_mb);
          expect_formula(config, mode);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mylos
