// SPDX-License-Identifier: BSD-3-Clause
#include "tests/parallel/equivalence.hpp"

#include <gtest/gtest.h>

#include "core/model/parameters.hpp"
#include "parallel/collectives/algorithm_communicator.hpp"
#include "tests/support/relative_error.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {

ModelConfig small_model() {
  ModelConfig model;
  model.layers = 2;
  model.heads = 3;
  model.width = 48;
  model.context = 40;
  model.vocab = 211;
  return model;
}

RunConfig without_amplified_noise(RunConfig config) {
  config.optimizer.values.set("optim.epsilon", 1e-2);
  return config;
}

Outcome train(ComputeBackend& backend, Communicator& world, const RunConfig& config, std::int64_t steps) {
  MemoryLedger ledger;
  MiniTrainer trainer(backend, ledger, world, without_amplified_noise(config));
  Outcome outcome;
  for (std::int64_t step = 1; step <= steps; ++step) {
    outcome.steps.push_back(trainer.step(walk_tokens(config, step)));
  }
  for (const Parameter& parameter : trainer.table().parameters()) {
    outcome.gradients.push_back(trainer.gradient(parameter.name));
    outcome.weights.push_back(trainer.weight(parameter.name));
  }
  outcome.whole_gradient = trainer.whole_gradient();
  return outcome;
}

Outcome train_alone(ComputeBackend& backend, Communicator& self, RunConfig config, std::int64_t steps) {
  config.train.micro_batch = config.train.global_batch;
  config.train.accumulation = 1;
  config.parallel.data = 1;
  config.parallel.tensor = 1;
  set_exchange(config, "ddp", 1);
  return train(backend, self, config, steps);
}

namespace {

/// The elements that exact arithmetic determines. If a gradient is zero in exact arithmetic, Adam's step
/// depends on rounding noise alone. The gradient of the key bias is always zero; the gradients of the weights
/// and biases of queries and keys are zero if a sequence has one token.
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

}  // namespace

void expect_equal_to_rounding(const RunConfig& config, const Outcome& outcome, const Outcome& oracle) {
  for (std::size_t step = 0; step < oracle.steps.size(); ++step) {
    EXPECT_NEAR(outcome.steps[step].loss / oracle.steps[step].loss, 1.0, 1e-5) << "step " << step + 1;
    EXPECT_NEAR(outcome.steps[step].gradient_norm / oracle.steps[step].gradient_norm, 1.0, 1e-5)
        << "step " << step + 1;
  }
  EXPECT_LE(relative_error(outcome.whole_gradient, oracle.whole_gradient), 1e-5);
  const ParameterTable table = parameters_of(config.model);
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    const Parameter& parameter = table.parameters()[i];
    const auto error = [&](const std::vector<float>& a, const std::vector<float>& b) {
      const bool one_token = config.train.seq_len == 1;
      return relative_error(determined(parameter, a, one_token), determined(parameter, b, one_token));
    };
    EXPECT_LE(error(outcome.gradients[i], oracle.gradients[i]), 2e-5) << parameter.name;
    EXPECT_LE(error(outcome.weights[i], oracle.weights[i]), 2e-5) << parameter.name;
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

Sent sent_by_rings(ComputeBackend& backend, const RunConfig& config, std::int64_t steps) {
  const std::unique_ptr<Communicator> world = open_communicator("shm");
  TrafficCounter messages;
  AlgorithmCommunicator rings(*world, AlgorithmChoice(Algorithm::ring), "wire", messages, &backend);
  Sent sent;
  {
    MemoryLedger ledger;
    MiniTrainer trainer(backend, ledger, rings, config);
    for (std::int64_t step = 1; step <= steps; ++step) trainer.step(walk_tokens(config, step));
    sent.calls = trainer.traffic().table();
  }  // destroying the trainer completed the gathers of the last step's weights
  sent.wire_bytes = static_cast<std::int64_t>(messages.axis("wire").payload_bytes(CommOperation::send));
  return sent;
}

std::int64_t sent_by_ring_all_reduce(std::int64_t count, std::int64_t ranks, std::int64_t rank) {
  const auto part = [&](std::int64_t i) { return count * (i + 1) / ranks - count * i / ranks; };
  return 2 * count - part(rank) - part((rank + 1) % ranks);
}

std::int64_t sent_by_half_a_ring(std::int64_t count, std::int64_t ranks) {
  EXPECT_EQ(count % ranks, 0);
  return count / ranks * (ranks - 1);
}

RunConfig config_of(const Variant& variant, std::int64_t ranks, std::int64_t accumulation) {
  ModelConfig model = small_model();
  model.layers = variant.layers;
  model.heads = variant.heads;
  model.width = variant.width;
  model.feed_forward = variant.feed_forward;
  model.vocab = variant.vocab;
  model.tied = variant.tied;
  model.dropout = variant.dropout;
  return mini_config(model, global_batch, variant.seq_len, ranks, accumulation);
}

}  // namespace mylos
