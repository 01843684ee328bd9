// SPDX-License-Identifier: BSD-3-Clause
// Mixtures of experts, on one rank and divided, against an implementation in torch that visits every token
// and expert in a loop (tests/reference/make_expert_reference.py).
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "core/base/rng.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

// As in the script.
std::uint64_t bits(std::uint64_t stream, std::uint64_t i) {
  return mix64(0x9e3779b97f4a7c15ULL * ((stream << 32U) + i + 1)) >> 40U;
}
double unit(std::uint64_t stream, std::uint64_t i) {
  return static_cast<double>(bits(stream, i)) / 8388608.0 - 1.0;
}

/// The global batch (8, T + 1) of step `step`, from 0 on.
std::vector<std::int32_t> tokens_of(std::uint64_t stream, std::uint64_t step, const ModelConfig& model) {
  constexpr std::uint64_t rows = 8;
  std::vector<std::int32_t> tokens;
  for (std::uint64_t row = step * rows; row < (step + 1) * rows; ++row) {
    std::uint64_t token = 0;
    for (std::uint64_t t = 0; t <= static_cast<std::uint64_t>(model.context); ++t) {
      const std::uint64_t drawn = bits(stream + row, t);
      token = (t == 0 ? drawn : 3 * token + drawn % 8) % static_cast<std::uint64_t>(model.vocab);
      tokens.push_back(static_cast<std::int32_t>(token));
    }
  }
  return tokens;
}

ExpertConfig experts_of(const Json& config, std::int64_t width) {
  const std::int64_t given = config.integer("expert_width");
  return {.count = config.integer("experts"),
          .per_token = config.integer("experts_per_token"),
          .width = given > 0 ? given : 4 * width,
          .every = config.integer("expert_every"),
          .has_shared = config.boolean("shared_expert"),
          .router = router_named(config.text("router")),
          .capacity = config.real("expert_capacity"),
          .by_choice = config.text("expert_order") == "choice",
          .balance_loss = static_cast<float>(config.real("balance_loss")),
          .z_loss = static_cast<float>(config.real("router_z_loss"))};
}

struct Layout {
  std::int64_t tensor = 1;
  std::int64_t expert = 1;
  bool divides_more = false;  // vocabulary and sequence
  std::string exchange = "ddp";
  std::int64_t accumulation = 1;
  Recompute recompute = Recompute::none;
};

std::vector<Layout> layouts(std::int64_t ranks, std::int64_t experts) {
  constexpr Recompute recompute[] = {Recompute::none, Recompute::selective, Recompute::block};
  std::vector<Layout> all;
  if (ranks == 1) {
    for (const Recompute each : recompute) all.push_back({.accumulation = 2, .recompute = each});
    return all;
  }
  for (const std::int64_t tensor : {1, 2}) {
    const std::int64_t data = ranks / tensor;
    for (const std::int64_t expert : {1, 2, 4}) {
      if (data % expert != 0 || experts % expert != 0) continue;
      for (const bool divides_more : {false, true}) {
        if (divides_more && tensor == 1) continue;
        for (const char* exchange : {"ddp", "zero1", "zero2", "zero3"}) {
          if (data == 1 && exchange != std::string("ddp")) continue;
          all.push_back(
              {tensor, expert, divides_more, exchange, 8 / data > 2 ? 2 : 1, recompute[all.size() % 3]});
        }
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
    ModelConfig model{.layers = shared.integer("layers"),
                      .heads = shared.integer("heads"),
                      .width = shared.integer("width"),
                      .context = shared.integer("context"),
                      .vocab = shared.integer("vocab")};
    model.experts = experts_of(own.at("config"), model.width);
    RunConfig run = mini_config(model, 8, model.context, world_->size() / layout.tensor, layout.accumulation);
    run.optimizer = optimizer_config("adamw");
    run.optimizer.values.set("optim.beta2", shared.real("beta2"));
    run.optimizer.weight_decay = static_cast<float>(shared.real("weight_decay"));
    run.lr.peak = shared.real("lr");
    run.guard.clip_norm = 0.0F;
    run.train.recompute = layout.recompute;
    run.parallel.tensor = layout.tensor;
    run.parallel.expert = layout.expert;
    run.parallel.splits = {.vocab = layout.divides_more, .sequence = layout.divides_more};
    set_exchange(run, layout.exchange, layout.exchange == "ddp" ? 1 : world_->size() / layout.tensor);
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *world_, run);
    std::uint64_t number = 0;
    for (const Json& tensor : own.elements("tensors")) {
      const std::string name = tensor.text("name");
      std::vector<float> values(static_cast<std::size_t>(product(trainer.table().find(name).shape)));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(tensor.real("centre") + tensor.real("spread") * unit(number, i));
      trainer.set_weight(name, values);
      ++number;
    }
    const auto stream = static_cast<std::uint64_t>(own.integer("stream"));
    std::uint64_t step = 0;
    for (const Json& loss : own.elements("losses")) {
      const StepScalars scalars = trainer.step(tokens_of(stream, step, model));
      EXPECT_NEAR(scalars.loss / std::stod(loss.dump()), 1.0, 1e-4) << "step " << step + 1;
      if (step++ == 0) compare_gradients(own, trainer);
    }
    EXPECT_EQ(step, 6U);
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
  ModelConfig model{.layers = 3, .heads = 2, .width = 32, .context = 16, .vocab = 131, .dropout = 0.1F};
  model.experts = {.count = 4, .width = 48, .every = 2, .capacity = 1.25, .by_choice = true, .z_loss = 1e-3F};
  for (const auto noise : {RouterNoise::Kind::normal, RouterNoise::Kind::learned}) {
    model.experts.noise = noise;
    model.experts.has_shared = noise == RouterNoise::Kind::normal;
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
      RunConfig run = mini_config(model, 8, model.context, ranks / layout.tensor, layout.accumulation);
      run.guard.clip_norm = 0.5F;
      run.train.recompute = layout.recompute;
      run.parallel.tensor = layout.tensor;
      run.parallel.expert = layout.expert;
      run.parallel.splits = {.vocab = layout.divides_more, .sequence = layout.divides_more};
      set_exchange(run, layout.exchange, layout.exchange == "ddp" ? 1 : ranks / layout.tensor);
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
  EXPECT_EQ(compared, 7);
}

}  // namespace
}  // namespace mylos
