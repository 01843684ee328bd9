// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous pipelines, emulated by one rank, against a loop in torch and double precision that keeps all
// versions of the weights (tests/reference/make_pipedream_reference.py).
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

// As in the script.
constexpr std::int64_t batch = 2;

std::uint32_t mixed(std::uint32_t a, std::uint32_t b) {
  std::uint32_t x = a * 2654435761U + b * 40503U + 12345U;
  x ^= x >> 15U;
  x *= 2246822519U;
  x ^= x >> 13U;
  x *= 3266489917U;
  return x ^ (x >> 16U);
}

ModelConfig reference_model() {
  ModelConfig model;
  model.layers = 6;
  model.heads = 2;
  model.width = 16;
  model.context = 12;
  model.vocab = 61;
  model.tied = false;
  return model;
}

/// The names of the weights in the script's order.
std::vector<std::string> names() {
  std::vector<std::string> all = {"wte.weight", "wpe.weight"};
  for (int layer = 0; layer < 6; ++layer) {
    for (const char* part : {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"}) {
      for (const char* kind : {"weight", "bias"}) all.push_back(fmt::format("h.{}.{}.{}", layer, part, kind));
    }
  }
  all.insert(all.end(), {"ln_f.weight", "ln_f.bias", "lm_head.weight"});
  return all;
}

std::vector<float> first_values(const Parameter& parameter, std::uint32_t number) {
  const bool is_norm_weight = parameter.shape.size() == 1 && parameter.name.ends_with("weight");
  std::vector<float> values(static_cast<std::size_t>(product(parameter.shape)));
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    const double value = 0.4 * (mixed(number, i) / 4294967296.0 - 0.5);
    values[i] = static_cast<float>(is_norm_weight ? 1.0 + value : value);
  }
  return values;
}

/// The global batch (A * B, T + 1) of step `step`, from 0 on.
std::vector<std::int32_t> tokens_of(const ModelConfig& model, std::int64_t step, std::int64_t micro_batches) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t row = step * micro_batches * batch; row < (step + 1) * micro_batches * batch; ++row) {
    std::int64_t token = 0;
    for (std::uint32_t t = 0; t <= model.context; ++t) {
      const std::int64_t noise = mixed(static_cast<std::uint32_t>(1000 + row), t);
      token = (t == 0 ? noise : 3 * token + noise % 8) % model.vocab;
      tokens.push_back(static_cast<std::int32_t>(token));
    }
  }
  return tokens;
}

class PipeDreamReference : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, PipeDreamReference, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

TEST_P(PipeDreamReference, HasTheLossesOfTheLoop) {
  ComputeBackend& backend = test_backends().at(GetParam());
  const std::unique_ptr<Communicator> self = open_communicator("self", &backend);
  const std::filesystem::path folder = std::filesystem::path(std::getenv("MYLOS_SOURCE")) / "tests/reference";
  const std::map<std::int64_t, std::vector<int>> cuts = {{2, {4}}, {3, {2, 5}}, {4, {2, 4, 6}}};
  int compared = 0;
  for (const Json& own : Json::parse(read_text_file(folder / "pipedream_reference.json")).elements("cases")) {
    const std::string rule = own.text("rule");
    const std::int64_t micro_batches = own.integer("step");
    const std::int64_t stages = own.integer("stages");
    const bool is_synchronous = rule == "synchronous";
    if (is_synchronous && own.boolean("clips")) continue;  // by stage, which is not offered
    SCOPED_TRACE(fmt::format("{}, {} stages, A = {}, {}, clips {}", rule, stages, micro_batches,
                             own.text("optimizer"), own.boolean("clips")));
    RunConfig run = mini_config(reference_model(), micro_batches * batch, 12, 1, micro_batches);
    run.optimizer = optimizer_config(own.text("optimizer"));
    run.optimizer.weight_decay = 0.1F;
    run.lr.peak = own.text("optimizer") == "adamw" ? 5e-3 : 5e-2;
    run.guard.clip_norm = own.boolean("clips") ? 0.5F : 0.0F;
    run.parallel.values.set("parallel.vertical_sync", rule == "vertical");
    if (!is_synchronous) {
      run.parallel.schedule =
          &find_kind(schedules(), rule == "pipedream_2bw" ? "pipedream_2bw" : "pipedream");
      run.parallel.emulated_stages = stages;
      run.parallel.cuts = cuts.at(stages);
    }
    MemoryLedger ledger;
    MiniTrainer trainer(backend, ledger, *self, run);
    std::uint32_t number = 0;
    for (const std::string& name : names())
      trainer.set_weight(name, first_values(trainer.table().find(name), number++));
    std::int64_t step = 0;
    for (const Json& loss : own.elements("losses")) {
      const StepScalars scalars = trainer.step(tokens_of(run.model, step, micro_batches));
      EXPECT_NEAR(scalars.loss / std::stod(loss.dump()), 1.0, 1e-4) << "step " << step + 1;
      ++step;
    }
    EXPECT_EQ(step, 12);
    ++compared;
  }
  EXPECT_EQ(compared, 26);
}

}  // namespace
}  // namespace mylos
