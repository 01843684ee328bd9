// SPDX-License-Identifier: BSD-3-Clause
// Muon, on one rank and on several that share each batch, against an implementation in torch
// (tests/reference/make_muon_reference.py).
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/file_util.hpp"
#include "io/json.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/reference/formulas.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

// Sequences per step.
constexpr std::int64_t batch = 8;

RunConfig config_of(const Json& config, const Json& shared, std::int64_t ranks) {
  ModelConfig model{.layers = config.integer("layers"),
                    .heads = shared.integer("heads"),
                    .width = shared.integer("width"),
                    .feed_forward = config.integer("feed_forward"),
                    .context = shared.integer("context"),
                    .vocab = shared.integer("vocab"),
                    .tied = config.boolean("tied")};
  if (config.integer("experts") > 0) model.experts = experts_of(config, model.inner_width());
  RunConfig run = mini_config(model, batch, model.context, ranks, ranks == 1 ? 2 : 1);
  run.lr = {.decay = config.text("schedule") == "cosine" ? LrDecay::cosine : LrDecay::constant,
            .peak = config.real("lr"),
            .min = config.real("min_lr"),
            .warmup = config.integer("warmup"),
            .steps = shared.integer("steps")};
  run.guard.clip_norm = static_cast<float>(config.real("clip_norm"));
  run.optimizer = optimizer_config("muon");
  run.optimizer.weight_decay = static_cast<float>(config.real("weight_decay"));
  ParamValues& values = run.optimizer.values;
  values.set("optim.lr", run.lr.peak);  // runs have all keys of their decks here
  values.set("optim.muon_lr", config.real("muon_lr"));
  values.set("optim.muon_scale", config.text("scale"));
  values.set("optim.muon_momentum", shared.real("momentum"));
  values.set("optim.beta1", shared.real("beta1"));
  values.set("optim.beta2", shared.real("beta2"));
  values.set("optim.epsilon", shared.real("epsilon"));
  return run;
}

using Weights = std::map<std::string, std::vector<float>>;

/// The weights that Muon trains. Collective.
Weights weights_of_muon(const Json& own, MiniTrainer& trainer) {
  Weights weights;
  for (const Json& tensor : own.elements("tensors")) {
    if (tensor.has("probe")) weights[tensor.text("name")] = trainer.weight(tensor.text("name"));
  }
  return weights;
}

/// A change's norm, and its product with given numbers, which sees signs and places.
void compare_changes(const Json& own, const Weights& before, const Weights& after) {
  std::uint64_t number = 1000;
  std::size_t compared = 0;
  for (const Json& tensor : own.elements("tensors")) {
    if (tensor.has("probe")) {
      const std::string name = tensor.text("name");
      const std::vector<float>& old = before.at(name);
      const std::vector<float>& updated = after.at(name);
      double squares = 0.0, probe = 0.0;
      for (std::size_t i = 0; i < old.size(); ++i) {
        const double change = static_cast<double>(updated[i]) - static_cast<double>(old[i]);
        squares += change * change;
        probe += change * unit(number, i);
      }
      const double norm = tensor.real("norm");
      EXPECT_NEAR(std::sqrt(squares) / norm, 1.0, 1e-4) << name;
      EXPECT_NEAR(probe, tensor.real("probe"), 1e-4 * norm) << name;
      ++compared;
    }
    ++number;
  }
  EXPECT_EQ(compared, 8U);  // four in each of two blocks
}

class MuonReference : public testing::TestWithParam<std::string> {
 protected:
  void compare(const Json& own, const Json& shared) {
    const RunConfig run = config_of(own.at("config"), shared, world_->size());
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *world_, run);
    std::uint64_t number = 0;
    for (const Json& tensor : own.elements("tensors")) {
      const std::string name = tensor.text("name");
      trainer.set_weight(name, first_weights(tensor, number, product(trainer.table().find(name).shape)));
      ++number;
    }
    EXPECT_EQ(number, trainer.table().parameters().size());
    const Weights before = weights_of_muon(own, trainer);
    const auto stream = static_cast<std::uint64_t>(own.integer("stream"));
    const std::vector<Json> norms = own.elements("gradient_norms");
    std::uint64_t step = 0;
    for (const Json& loss : own.elements("losses")) {
      const StepScalars scalars = trainer.step(tokens_of(stream, step, run.model));
      EXPECT_NEAR(scalars.loss / std::stod(loss.dump()), 1.0, 1e-5) << "step " << step + 1;
      EXPECT_NEAR(scalars.gradient_norm / std::stod(norms.at(step).dump()), 1.0, 1e-4) << "step " << step + 1;
      if (step == 0) compare_changes(own, before, weights_of_muon(own, trainer));
      ++step;
    }
    EXPECT_EQ(step, 20U);
  }

  ComputeBackend& backend_ = test_backends(1).at(GetParam());
  std::unique_ptr<Communicator> world_ = open_communicator("mpi", &backend_);
};
INSTANTIATE_TEST_SUITE_P(Backends, MuonReference, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

TEST_P(MuonReference, HasLossesAndChangesOfTorch) {
  if (batch % world_->size() != 0) GTEST_SKIP() << "needs ranks that share 8 sequences";
  const std::filesystem::path folder = std::filesystem::path(std::getenv("MYLOS_SOURCE")) / "tests/reference";
  const Json all = Json::parse(read_text_file(folder / "muon_reference.json"));
  int compared = 0;
  for (const Json& own : all.elements("cases")) {
    SCOPED_TRACE(own.text("name"));
    compare(own, all);
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

}  // namespace
}  // namespace mylos
