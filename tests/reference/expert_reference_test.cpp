// SPDX-License-Identifier: BSD-3-Clause
// Mixtures of experts and of depths, on one rank and divided, against an implementation in torch that visits
// every token and expert in a loop (tests/reference/make_expert_reference.py).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "app/train/step_record.hpp"
#include "core/base/kinds.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/reference/formulas.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

/// The mean loss of an evaluation of samples (n, T + 1), all of them on every rank.
double evaluated_loss(ModelExecutor& executor, std::span<const std::int32_t> tokens) {
  const BatchShape shape = executor.shape();
  const auto size = static_cast<std::size_t>(shape.batch * (shape.seq + 1));
  double sum = 0.0;
  for (std::size_t at = 0; at < tokens.size(); at += size) {
    executor.load_evaluation(tokens.subspan(at, size));
    executor.evaluate();
    double own = 0.0;
    for (const float loss : executor.evaluation_losses()) own += loss;
    sum += own / static_cast<double>(shape.rows());
  }
  return sum * static_cast<double>(size) / static_cast<double>(tokens.size());
}

struct Layout {
  std::int64_t tensor = 1;
  std::int64_t expert = 1;
  bool divides_more = false;  // vocabulary and sequence
  std::string exchange = "ddp";
  std::int64_t shard = 1;
  std::int64_t accumulation = 1;
  Recompute recompute = Recompute::none;
};

/// Sequences per step.
std::int64_t batch_of(std::int64_t ranks) {
  return ranks % 3 == 0 ? 12 : 8;
}

std::vector<Layout> layouts(std::int64_t ranks, std::int64_t experts) {
  constexpr Recompute recompute[] = {Recompute::none, Recompute::selective, Recompute::block};
  std::vector<Layout> all;
  if (ranks == 1) {
    for (const Recompute each : recompute) all.push_back({.accumulation = 2, .recompute = each});
    return all;
  }
  for (const std::int64_t tensor : {1, 2}) {
    if (ranks % tensor != 0) continue;
    const std::int64_t data = ranks / tensor;
    for (const std::int64_t expert : {1, 2, 3, 4}) {
      if (data % expert != 0 || std::max(experts, std::int64_t{1}) % expert != 0) continue;
      for (const bool divides_more : {false, true}) {
        if (divides_more && tensor == 1) continue;
        for (const char* exchange : {"ddp", "zero1", "zero2", "zero3"}) {
          if (data == 1 && exchange != std::string("ddp")) continue;
          all.push_back({tensor, expert, divides_more, exchange, exchange == std::string("ddp") ? 1 : data,
                         batch_of(ranks) / data > 2 ? 2 : 1, recompute[all.size() % 3]});
        }
        const std::int64_t half = data / 2;
        if (half > 1 && data % 2 == 0 && half % expert == 0)
          all.push_back({tensor, expert, divides_more, "zero2", half, 1, recompute[all.size() % 3]});
      }
    }
  }
  return all;
}

/// The key's bias has no gradient but rounding.
double without_key_bias(const std::string& name, std::size_t i, std::size_t size) {
  return name.ends_with("c_attn.bias") && i * 3 / size == 1 ? 0.0 : 1.0;
}

class ExpertReference : public testing::TestWithParam<std::string> {
 protected:
  void compare(const Json& own, const Json& shared, const Layout& layout) {
    const Json config = own.at("config");
    ModelConfig model{.layers = config.integer("layers"),
                      .heads = shared.integer("heads"),
                      .width = shared.integer("width"),
                      .feed_forward = config.integer("feed_forward"),
                      .context = shared.integer("context"),
                      .vocab = shared.integer("vocab")};
    if (config.integer("experts") > 0) model.experts = experts_of(config, model.inner_width());
    model.depths.capacity = config.real("depth_capacity");
    model.depths.every = config.integer("depth_every");
    RunConfig run = mini_config(model, 8, model.context, world_->size() / layout.tensor, layout.accumulation);
    run.optimizer = optimizer_config("adamw");
    run.optimizer.values.set("optim.beta2", shared.real("beta2"));
    run.optimizer.weight_decay = static_cast<float>(shared.real("weight_decay"));
    run.lr.peak = shared.real("lr");
    run.guard.clip_norm = static_cast<float>(config.real("clip_norm"));
    run.train.recompute = layout.recompute;
    run.parallel.tensor = layout.tensor;
    run.parallel.expert = layout.expert;
    // Depths cannot be used with sequence parallelism.
    run.parallel.splits = {.vocab = layout.divides_more,
                           .sequence = layout.divides_more && model.depths.capacity == 0.0};
    set_exchange(run, layout.exchange, layout.shard);
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *world_, run);
    std::uint64_t number = 0;
    for (const Json& tensor : own.elements("tensors")) {
      const std::string name = tensor.text("name");
      trainer.set_weight(name, first_weights(tensor, number, product(trainer.table().find(name).shape)));
      ++number;
    }
    const auto stream = static_cast<std::uint64_t>(own.integer("stream"));
    std::uint64_t step = 0;
    std::vector<float> norms;
    for (const Json& loss : own.elements("losses")) {
      trainer.run(tokens_of(stream, step, model));
      const StepResults& results = trainer.read();
      norms.push_back(results.scalars.gradient_norm);
      EXPECT_NEAR(results.scalars.loss / std::stod(loss.dump()), 1.0, 1e-4) << "step " << step + 1;
      if (step++ > 0) continue;
      compare_routing(own, run, results.statistics);
      compare_gradients(own, trainer);
    }
    EXPECT_EQ(step, 6U);
    if (model.depths.capacity > 0.0) compare_depths(own, model, trainer, norms);
  }

  /// The columns about routers of the first step; `statistics` are the rank's.
  void compare_routing(const Json& own, const RunConfig& run, std::vector<float> statistics) {
    world_->all_reduce({statistics.data(), DType::fp32, {std::ssize(statistics)}}, ReduceOp::sum).host_wait();
    const MetricsRow row = routing_columns(run.model, run.train, statistics);
    const std::map<std::string, double> columns(row.begin(), row.end());
    EXPECT_EQ(columns.size(), row.size()) << "names differ";
    const ExpertConfig& experts = run.model.experts;
    if (experts.count > 0) {
      EXPECT_NEAR(columns.at("balance_loss"), own.real("balance_loss"), 1e-4);
      EXPECT_NEAR(columns.at("router_z_loss") / own.real("z_loss"), 1.0, 1e-4);
      double pairs = 0.0;
      double largest = 0.0;
      for (const Json& routed : own.elements("routed")) {
        const std::vector<std::int64_t> loads = routed.integers("loads");
        const auto of_layer =
            static_cast<double>(std::accumulate(loads.begin(), loads.end(), std::int64_t{0}));
        pairs += of_layer;
        for (std::size_t e = 0; e < loads.size(); ++e) {
          const double load = static_cast<double>(loads[e] * experts.count) / of_layer;
          largest = std::max(largest, load);
          EXPECT_DOUBLE_EQ(columns.at(fmt::format("load_{}_{}", routed.integer("layer"), e)), load);
        }
      }
      EXPECT_DOUBLE_EQ(columns.at("largest_load"), largest);
      EXPECT_NEAR(columns.at("dropped_share"), static_cast<double>(own.integer("dropped")) / pairs, 1e-12);
    }
    if (run.model.depths.capacity > 0.0) {
      double predicted = 0.0;
      double hits = 0.0;
      const std::vector<Json> blocks = own.elements("depths");
      for (const Json& block : blocks) {
        predicted += block.real("predicted") / static_cast<double>(blocks.size());
        hits += block.real("hits") / static_cast<double>(blocks.size());
      }
      EXPECT_NEAR(columns.at("predictor_loss") / own.real("predictor_loss"), 1.0, 1e-4);
      EXPECT_NEAR(columns.at("predicted_share"), predicted, 1e-7);
      EXPECT_NEAR(columns.at("predictor_hits"), hits, 1e-7);
    }
  }

  /// What only cases with depths have: the gradient's norm before clipping in each step, and losses of tokens
  /// that come after the last step's, with either choice of the tokens that go through routed blocks.
  static void compare_depths(const Json& own, const ModelConfig& model, MiniTrainer& trainer,
                             const std::vector<float>& norms) {
    std::size_t step = 0;
    for (const Json& norm : own.elements("gradient_norms")) {
      EXPECT_NEAR(norms.at(step) / std::stod(norm.dump()), 1.0, step == 0 ? 1e-4 : 1e-3)
          << "step " << step + 1;
      ++step;
    }
    EXPECT_EQ(step, norms.size());
    const Json held_out = own.at("held_out");
    const std::vector<std::int32_t> tokens =
        tokens_of(static_cast<std::uint64_t>(own.integer("stream")), norms.size(), model);
    EXPECT_NEAR(evaluated_loss(trainer.executor(), tokens) / held_out.real("predicted"), 1.0, 2e-4);
    // A training step with a capacity drops pairs, which the reference does not.
    if (model.experts.capacity == 0.0) {
      EXPECT_NEAR(trainer.step(tokens).loss / held_out.real("largest"), 1.0, 2e-4);
    }
  }

  /// A gradient's norm, and its product with given numbers, which sees signs and places.
  static void compare_gradients(const Json& own, MiniTrainer& trainer) {
    std::uint64_t number = 1000;
    for (const Json& tensor : own.elements("tensors")) {
      const std::string name = tensor.text("name");
      const std::vector<float> gradient = trainer.gradient(name);
      double squares = 0.0, probe = 0.0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double value = gradient[i] * without_key_bias(name, i, gradient.size());
        squares += value * value;
        probe += value * unit(number, i);
      }
      const double norm = tensor.real("norm");
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-4 * norm + 1e-9) << name;
      EXPECT_NEAR(probe, tensor.real("probe"), 1e-4 * norm + 1e-9) << name;
      ++number;
    }
  }

  ComputeBackend& backend_ = test_backends(1).at(GetParam());
  std::unique_ptr<Communicator> world_ = open_communicator("mpi", &backend_);
};
INSTANTIATE_TEST_SUITE_P(Backends, ExpertReference, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

/// One expert that every token uses is a dense layer.
TEST_P(ExpertReference, OneExpertIsADenseLayer) {
  if (world_->size() > 1) GTEST_SKIP() << "needs one rank";
  const ModelConfig dense{.layers = 2, .heads = 2, .width = 32, .context = 16, .vocab = 131};
  ModelConfig routed = dense;
  routed.experts = {.count = 1, .per_token = 1, .width = 128, .router = RouterKind::softmax_topk};
  RunConfig runs[] = {mini_config(dense, 8, 16), mini_config(routed, 8, 16)};
  MemoryLedger ledgers[2];
  MiniTrainer plain(backend_, ledgers[0], *world_, runs[0]);
  MiniTrainer with_expert(backend_, ledgers[1], *world_, runs[1]);
  for (const Parameter& parameter : plain.table().parameters()) {
    std::string name = parameter.name;
    if (const auto at = name.find("mlp."); at != std::string::npos) name.replace(at, 4, "moe.experts.");
    with_expert.set_weight(name, plain.weight(parameter.name));
  }
  for (std::int64_t step = 1; step <= 6; ++step) {
    const StepScalars expected = plain.step(walk_tokens(runs[0], step));
    const StepScalars actual = with_expert.step(walk_tokens(runs[1], step));
    EXPECT_NEAR(actual.loss / expected.loss, 1.0, 1e-6);
    EXPECT_NEAR(actual.gradient_norm / expected.gradient_norm, 1.0, 1e-5);
  }
}

/// With what the reference leaves out: noise, dropout and clipping.
TEST_P(ExpertReference, EveryLayoutComputesWhatOneRankDoes) {
  if (world_->size() == 1) GTEST_SKIP() << "needs several ranks";
  const std::unique_ptr<Communicator> self = open_communicator("self", &backend_);
  ModelConfig model{
      .layers = 3, .heads = 2, .width = 32, .feed_forward = 56, .context = 16, .vocab = 131, .dropout = 0.1F};
  model.experts = {
      .count = 12, .width = 24, .every = 2, .capacity = 1.25, .by_choice = true, .z_loss = 1e-3F};
  for (const auto noise : {RouterNoise::Kind::normal, RouterNoise::Kind::learned}) {
    model.experts.noise = noise;
    model.experts.has_shared = noise == RouterNoise::Kind::normal;
    if (noise == RouterNoise::Kind::learned) model.depths = {.capacity = 0.4, .every = 1};
    const auto train = [&](const RunConfig& run, Communicator& ranks) {
      MemoryLedger ledger;
      MiniTrainer trainer(backend_, ledger, ranks, run);
      std::pair<std::vector<float>, std::vector<float>> losses_and_gradient;
      for (std::int64_t step = 1; step <= 12; ++step) {
        const StepScalars scalars = trainer.step(walk_tokens(run, step));
        losses_and_gradient.first.insert(losses_and_gradient.first.end(),
                                         {scalars.loss, scalars.gradient_norm});
        if (step == 1) losses_and_gradient.second = trainer.gradient("h.1.moe.experts.c_fc.weight");
      }
      return losses_and_gradient;
    };
    const auto config = [&](const Layout& layout, std::int64_t ranks) {
      RunConfig run = mini_config(model, batch_of(world_->size()), model.context, ranks / layout.tensor,
                                  layout.accumulation);
      run.guard.clip_norm = 0.5F;
      run.train.recompute = layout.recompute;
      run.parallel.tensor = layout.tensor;
      run.parallel.expert = layout.expert;
      run.parallel.splits = {.vocab = layout.divides_more,
                             .sequence = layout.divides_more && model.depths.capacity == 0.0};
      set_exchange(run, layout.exchange, layout.shard);
      return run;
    };
    const auto alone = train(config({.accumulation = 2}, 1), *self);
    for (const Layout& layout : layouts(world_->size(), model.experts.count)) {
      SCOPED_TRACE(fmt::format("tensor {}, expert {}, {}, recompute {}{}", layout.tensor, layout.expert,
                               layout.exchange, static_cast<int>(layout.recompute),
                               layout.divides_more ? ", vocab, sequence" : ""));
      const auto divided = train(config(layout, world_->size()), *world_);
      for (std::size_t i = 0; i < alone.first.size(); ++i)
        EXPECT_NEAR(divided.first[i] / alone.first[i], 1.0, 5e-5) << i;
      double difference = 0.0, norm = 0.0;
      for (std::size_t i = 0; i < alone.second.size(); ++i) {
        difference += std::pow(divided.second[i] - alone.second[i], 2);
        norm += std::pow(alone.second[i], 2);
      }
      EXPECT_LE(std::sqrt(difference), 1e-4 * std::sqrt(norm));
    }
  }
}

TEST_P(ExpertReference, HasLossesAndGradientsOfTheLoop) {
  if (world_->size() % 3 == 0) GTEST_SKIP() << "needs ranks that share 8 sequences";
  const std::filesystem::path folder = std::filesystem::path(std::getenv("MYLOS_SOURCE")) / "tests/reference";
  const Json all = Json::parse(read_text_file(folder / "expert_reference.json"));
  int compared = 0;
  for (const Json& own : all.elements("cases")) {
    for (const Layout& layout : layouts(world_->size(), own.at("config").integer("experts"))) {
      SCOPED_TRACE(fmt::format("{}, tensor {}, expert {}, {}, {} micro-batches, recompute {}{}",
                               own.text("name"), layout.tensor, layout.expert, layout.exchange,
                               layout.accumulation, static_cast<int>(layout.recompute),
                               layout.divides_more ? ", vocab, sequence" : ""));
      compare(own, all, layout);
    }
    ++compared;
  }
  EXPECT_EQ(compared, 12);
}

}  // namespace
}  // namespace mylos
