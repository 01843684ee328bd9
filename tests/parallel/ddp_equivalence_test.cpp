// SPDX-License-Identifier: BSD-3-Clause
// Data parallelism against one rank that computes the same global batch alone; recomputation and odd shapes.
#include <cmath>
#include <cstdlib>
#include <ostream>

#include <gtest/gtest.h>

#include "parallel/health/traffic.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/relative_error.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

constexpr std::int64_t global_batch = 12;

ModelConfig small_model() {
  ModelConfig model;
  model.layers = 2;
  model.heads = 3;
  model.width = 48;
  model.context = 40;
  model.vocab = 211;
  return model;
}

/// What a run leaves behind.
struct Outcome {
  std::vector<StepScalars> steps;
  std::vector<std::vector<float>> gradients;  // of the last step, by parameter
  std::vector<std::vector<float>> weights;
  std::vector<float> whole_gradient;
  std::vector<TrafficRow> traffic;
};

class DdpEquivalence : public testing::Test {
 protected:
  /// Trains on all ranks of `communicator`.
  Outcome run(Communicator& communicator, const RunConfig& config, std::int64_t steps) {
    MiniTrainer trainer(backend_, ledger_, communicator, config);
    Outcome outcome;
    for (std::int64_t step = 1; step <= steps; ++step) {
      outcome.steps.push_back(trainer.step(walk_tokens(config, step)));
    }
    for (const Parameter& parameter : trainer.table().parameters()) {
      outcome.gradients.push_back(trainer.gradient(parameter.name));
      outcome.weights.push_back(trainer.weight(parameter.name));
    }
    outcome.whole_gradient = trainer.whole_gradient();
    outcome.traffic = trainer.traffic().table();
    return outcome;
  }

  Outcome run_alone(RunConfig config, std::int64_t steps) {
    config.train.micro_batch = config.train.global_batch;
    config.train.accumulation = 1;
    config.parallel.data = 1;
    return run(*self_, config, steps);
  }

  int ranks() const { return world_->size(); }

  RunConfig parallel_config() const {
    RunConfig config = mini_config(small_model(), global_batch, 37, ranks(), ranks() < 4 ? 2 : 1);
    set_ddp(config, "bucketed", 0.01);
    return config;
  }

  /// Trains with gradients in fp32 and in the type of `config`. Losses and norms differ from those of one
  /// rank in fp32 by at most these relative errors.
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
  CommunicatorHandle self_ = open_communicator("self", &backend_);
  CommunicatorHandle world_ = open_communicator("mpi", &backend_);
  MemoryLedger ledger_;
};

/// The elements that exact arithmetic determines. Adam steps a gradient that is zero in exact arithmetic by
/// its rounding noise: that of the key bias always, that of queries and keys where a sequence has one token.
std::vector<float> determined(const Parameter& parameter, const std::vector<float>& values, bool one_token) {
  const bool qkv_weight = parameter.name.ends_with("c_attn.weight");
  const bool qkv_bias = parameter.name.ends_with("c_attn.bias");
  if (!qkv_bias && !(qkv_weight && one_token)) return values;
  const auto columns = static_cast<std::size_t>(parameter.shape.back());
  std::vector<float> kept;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t part = i % columns / (columns / 3);  // query, key, value
    if (part == 2 || (part == 0 && !one_token)) kept.push_back(values[i]);
  }
  return kept;
}

void expect_equal_to_rounding(const RunConfig& config, const Outcome& outcome, const Outcome& oracle) {
  for (std::size_t step = 0; step < oracle.steps.size(); ++step) {
    EXPECT_NEAR(outcome.steps[step].loss / oracle.steps[step].loss, 1.0, 1e-5) << "step " << step + 1;
    EXPECT_NEAR(outcome.steps[step].gradient_norm / oracle.steps[step].gradient_norm, 1.0, 1e-5)
        << "step " << step + 1;
  }
  EXPECT_LE(relative_error(outcome.whole_gradient, oracle.whole_gradient), 1e-5);
  const ParameterTable table(config.model);
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    const Parameter& parameter = table.parameters()[i];
    const auto error = [&](const std::vector<float>& a, const std::vector<float>& b) {
      const bool one_token = config.train.seq_len == 1;
      return relative_error(determined(parameter, a, one_token), determined(parameter, b, one_token));
    };
    EXPECT_LE(error(outcome.gradients[i], oracle.gradients[i]), 1e-4) << parameter.name;
    EXPECT_LE(error(outcome.weights[i], oracle.weights[i]), 1e-4) << parameter.name;
  }
}

void expect_bitwise_equal(const Outcome& outcome, const Outcome& oracle) {
  for (std::size_t step = 0; step < oracle.steps.size(); ++step) {
    EXPECT_EQ(outcome.steps[step].loss, oracle.steps[step].loss) << "step " << step + 1;
    EXPECT_EQ(outcome.steps[step].gradient_norm, oracle.steps[step].gradient_norm) << "step " << step + 1;
  }
  EXPECT_EQ(outcome.gradients, oracle.gradients);
  EXPECT_EQ(outcome.weights, oracle.weights);
}

struct Mode {
  std::string_view name;
  double bucket_mb;
};

constexpr Mode modes[] = {
    {"per_parameter", 25.0}, {"flat", 25.0}, {"overlapped", 25.0}, {"bucketed", 0.01}, {"bucketed", 25.0}};

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

/// A run that is unlike the others in one respect.
struct Variant {
  const char* name;
  std::int64_t layers, heads, width, vocab, seq_len;
  bool tied;
  float dropout;
};

std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.name;
}

constexpr Variant variants[] = {
    {"untied", 2, 3, 48, 211, 37, false, 0.0F},  {"dropout", 2, 3, 48, 211, 37, true, 0.2F},
    {"one_head", 2, 1, 24, 211, 37, true, 0.0F}, {"one_layer", 1, 5, 40, 128, 16, true, 0.0F},
    {"one_token", 2, 3, 48, 211, 1, true, 0.0F}, {"one_channel_a_head", 1, 7, 7, 5, 9, false, 0.1F}};

RunConfig config_of(const Variant& variant, std::int64_t ranks, std::int64_t accumulation = 1) {
  ModelConfig model = small_model();
  model.layers = variant.layers;
  model.heads = variant.heads;
  model.width = variant.width;
  model.vocab = variant.vocab;
  model.tied = variant.tied;
  model.dropout = variant.dropout;
  return mini_config(model, global_batch, variant.seq_len, ranks, accumulation);
}

class DdpVariants : public DdpEquivalence, public testing::WithParamInterface<Variant> {};

TEST_P(DdpVariants, ComputeWhatOneRankDoes) {
  constexpr std::int64_t steps = 5;
  const Outcome oracle = run_alone(config_of(GetParam(), 1), steps);
  const RunConfig config = config_of(GetParam(), ranks());
  expect_equal_to_rounding(config, run(*world_, config, steps), oracle);
}

TEST_P(DdpVariants, AreBitwiseTheSameWhereActivationsAreRecomputed) {
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
    const Outcome outcome = expect_near_fp32(config, 5e-4, 4e-3).back();
    expect_bitwise_equal(run(*world_, config, 10), outcome);
    config.optimizer.seed = 1;
    EXPECT_NE(run(*world_, config, 10).weights, outcome.weights) << "another seed";
  }
}

/// Calls and bytes of one step, worked out from the model's shape alone.
struct Traffic {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
};

/// The sizes of a GPT-2's gradients in elements, in groups that backward completes together: the head, then
/// from the last block to the first, then the embedding.
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

/// What a mode sends: bare tensors one by one, or stretches of the buffer in which each tensor begins at a
/// multiple of 64 elements.
Traffic gradient_traffic(const ModelConfig& model, const Mode& mode) {
  const auto limit = static_cast<std::int64_t>(mode.bucket_mb * 1024.0 * 1024.0);
  Traffic traffic;
  std::int64_t buffer = 0;   // bytes complete, with the alignment behind
  std::int64_t pending = 0;  // of these, bytes that no bucket has yet
  for (const auto& group : gradient_groups(model)) {
    for (const std::int64_t size : group) {
      const std::int64_t aligned = (size + 63) / 64 * 64;
      if (mode.name == "per_parameter" || mode.name == "overlapped") {
        traffic.calls += 1;
        traffic.bytes += static_cast<std::uint64_t>(size) * 4;
      }
      buffer += aligned * 4;
      pending += aligned * 4;
    }
    if (mode.name == "bucketed" && pending >= limit) {
      traffic.calls += 1;
      pending = 0;
    }
  }
  if (mode.name == "flat" || (mode.name == "bucketed" && pending > 0)) traffic.calls += 1;
  if (mode.name == "flat" || mode.name == "bucketed") {
    traffic.bytes = static_cast<std::uint64_t>(buffer);
  }
  return traffic;
}

TEST_F(DdpEquivalence, SendsExactlyWhatTheFormulaSays) {
  constexpr std::int64_t steps = 3;
  for (const bool tied : {true, false}) {
    for (const Mode& mode : modes) {
      for (const std::int64_t accumulation : {1, 2, 3}) {
        if (global_batch % (accumulation * ranks()) != 0) continue;
        SCOPED_TRACE(
            fmt::format("{}, accumulation {}, {}", mode.name, accumulation, tied ? "tied" : "untied"));
        ModelConfig model = small_model();
        model.width = 45;  // no multiple of the alignment
        model.tied = tied;
        RunConfig config = mini_config(model, global_batch, 8, ranks(), accumulation);
        set_ddp(config, mode.name, mode.bucket_mb);
        const std::vector<TrafficRow> sent = run(*world_, config, steps).traffic;
        if (ranks() == 1) {
          EXPECT_TRUE(sent.empty());
          continue;
        }
        ASSERT_EQ(sent.size(), 1U);
        EXPECT_EQ(sent[0].axis, "data");
        EXPECT_EQ(sent[0].operation, Operation::all_reduce);
        const Traffic expected = gradient_traffic(model, mode);
        constexpr std::uint64_t scalars = 2;  // loss sum and squared norm
        EXPECT_EQ(sent[0].calls, steps * (expected.calls + 1));
        EXPECT_EQ(sent[0].payload_bytes, steps * (expected.bytes + scalars * sizeof(float)));
      }
    }
  }
}

}  // namespace
}  // namespace mylos
