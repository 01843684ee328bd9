// SPDX-License-Identifier: BSD-3-Clause
// mylos against Hugging Face's GPT-2 in PyTorch, on every compute backend.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "app/inference/text_generator.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/reference/reference_file.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/relative_error.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

std::filesystem::path reference_path() {
  return std::filesystem::path(std::getenv("MYLOS_SOURCE")) / "tests" / "reference" / "gpt2_reference.h5";
}

RunConfig reference_config(const ReferenceFile& file, DType dtype) {
  const auto integer = [&](const char* name) { return static_cast<std::int64_t>(file.attribute(name)); };
  ModelConfig model;
  model.layers = integer("layers");
  model.heads = integer("heads");
  model.width = integer("width");
  model.context = integer("context");
  model.vocab = integer("vocab");
  RunConfig config = mini_config(model, integer("micro_batch"), integer("seq_len"));
  config.train.dtype = dtype;
  config.train.grad_dtype = dtype;
  config.lr.peak = file.attribute("lr");
  config.optimizer.values.set("optim.beta1", file.attribute("beta1"));
  config.optimizer.values.set("optim.beta2", file.attribute("beta2"));
  config.optimizer.values.set("optim.epsilon", file.attribute("epsilon"));
  config.optimizer.weight_decay = static_cast<float>(file.attribute("weight_decay"));
  config.guard.clip_norm = static_cast<float>(file.attribute("clip_norm"));
  return config;
}

bool is_qkv_bias(const std::string& name) {
  return name.ends_with("attn.c_attn.bias");
}

/// The QKV bias without the key bias, whose gradient is zero in exact arithmetic: Adam updates it by noise.
std::vector<float> without_key_bias(const std::string& name, std::vector<float> values) {
  if (!is_qkv_bias(name)) return values;
  const auto width = static_cast<std::ptrdiff_t>(values.size() / 3);
  values.erase(values.begin() + width, values.begin() + 2 * width);
  return values;
}

double norm(std::span<const float> values) {
  double sum = 0.0;
  for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum);
}

class ReferenceTest : public testing::TestWithParam<std::string> {
 protected:
  void load_weights(MiniTrainer& trainer) const {
    for (const Parameter& parameter : trainer.table().parameters()) {
      trainer.set_weight(parameter.name, file_.read("weights/" + parameter.name));
    }
  }

  /// The tokens (B, T + 1) of step `step` (0 for the first).
  std::span<const std::int32_t> tokens(std::int64_t step) const {
    const auto size = tokens_.size() / static_cast<std::size_t>(file_.attribute("steps"));
    return std::span(tokens_).subspan(static_cast<std::size_t>(step) * size, size);
  }

  void expect_weights_after(MiniTrainer& trainer) const {
    for (const Parameter& parameter : trainer.table().parameters()) {
      const std::string& name = parameter.name;
      const std::vector<float> truth = file_.read("weights_after/" + name);
      EXPECT_LE(relative_error(without_key_bias(name, trainer.weight(name)), without_key_bias(name, truth)),
                1e-4)
          << name;
    }
  }

  /// The reference's configuration with passes over the cache, for `logits`.
  RunConfig config(DType dtype) const {
    RunConfig config = reference_config(file_, dtype);
    config.cache = generation_cache(config.train.seq_len, 1);
    return config;
  }

  /// The logits (B, T, vocabulary) of the first step's tokens, which are read one by one.
  std::vector<float> logits(MiniTrainer& trainer) const {
    const auto length = static_cast<std::size_t>(trainer.executor().shape().seq);
    const std::int32_t row = 0;
    std::vector<float> all;
    for (std::size_t begin = 0; begin < tokens(0).size(); begin += length + 1) {
      for (std::size_t i = 0; i < length; ++i) {
        const auto position = static_cast<std::int32_t>(i);
        trainer.executor().continue_texts(
            0, {.tokens = tokens(0).subspan(begin + i, 1), .rows = {&row, 1}, .positions = {&position, 1}});
        const std::span<const float> own = trainer.executor().cached_logits();
        all.insert(all.end(), own.begin(), own.end());
      }
    }
    return all;
  }

  ReferenceFile file_{reference_path()};
  ComputeBackend& backend_ = test_backends().at(GetParam());
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  MemoryLedger ledger_;
  std::vector<std::int32_t> tokens_ = file_.read<std::int32_t>("tokens");
};

TEST_P(ReferenceTest, FirstStepInFp32) {
  MiniTrainer trainer(backend_, ledger_, *self_, config(DType::fp32));
  load_weights(trainer);
  EXPECT_LE(relative_error(logits(trainer), file_.read("logits")), 1e-5);
  const StepScalars scalars = trainer.step(tokens(0));
  EXPECT_NEAR(scalars.gradient_norm / file_.read<double>("grad_norm")[0], 1.0, 1e-5);
  for (const Parameter& parameter : trainer.table().parameters()) {
    const std::string& name = parameter.name;
    const std::vector<float> gradient = trainer.gradient(name);
    const std::vector<float> truth = file_.read("gradients/" + name);
    EXPECT_LE(relative_error(without_key_bias(name, gradient), without_key_bias(name, truth)), 1e-5) << name;
    if (!is_qkv_bias(name)) continue;
    const std::size_t width = gradient.size() / 3;
    EXPECT_LE(norm(std::span(gradient).subspan(width, width)), 1e-7 * norm(gradient)) << name;
  }
}

TEST_P(ReferenceTest, StepsInFp32) {
  MiniTrainer trainer(backend_, ledger_, *self_, reference_config(file_, DType::fp32));
  load_weights(trainer);
  const std::vector<double> losses = file_.read<double>("loss");
  const auto weights_after = static_cast<std::size_t>(file_.attribute("weights_after"));
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const StepScalars scalars = trainer.step(tokens(static_cast<std::int64_t>(step)));
    EXPECT_NEAR(scalars.loss / losses[step], 1.0, 1e-5) << "step " << step + 1;
    if (step + 1 == weights_after) expect_weights_after(trainer);
  }
}

TEST_P(ReferenceTest, FirstStepInBf16) {
  MiniTrainer trainer(backend_, ledger_, *self_, config(DType::bf16));
  load_weights(trainer);
  EXPECT_LE(relative_error(logits(trainer), file_.read("logits")), 2e-2);
  trainer.step(tokens(0));
  for (const Parameter& parameter : trainer.table().parameters()) {
    const std::string& name = parameter.name;
    const double pytorch = file_.read<double>("bf16/gradient_error/" + name)[0];
    EXPECT_LE(relative_error(trainer.gradient(name), file_.read("gradients/" + name)), 1.5 * pytorch) << name;
  }
}

TEST_P(ReferenceTest, StepsInBf16) {
  MiniTrainer trainer(backend_, ledger_, *self_, reference_config(file_, DType::bf16));
  load_weights(trainer);
  const std::vector<double> losses = file_.read<double>("loss");
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const StepScalars scalars = trainer.step(tokens(static_cast<std::int64_t>(step)));
    EXPECT_NEAR(scalars.loss / losses[step], 1.0, 1e-3) << "step " << step + 1;
  }
}

/// Every rank has its part of Hugging Face's matrices; the gradients, joined from all ranks, match Hugging
/// Face's.
TEST_P(ReferenceTest, DividedFirstStepInFp32) {
  const std::unique_ptr<Communicator> world = open_communicator("mpi", &backend_);
  RunConfig config = reference_config(file_, DType::fp32);
  config.parallel.tensor = world->size();
  for (const bool divides : {false, true}) {
    const std::int64_t rows = config.train.micro_batch * config.train.seq_len;
    config.parallel.splits = {.vocab = divides, .sequence = divides && rows % world->size() == 0};
    MiniTrainer trainer(backend_, ledger_, *world, config);
    load_weights(trainer);
    const StepScalars scalars = trainer.step(tokens(0));
    EXPECT_NEAR(scalars.loss / file_.read<double>("loss")[0], 1.0, 1e-5);
    EXPECT_NEAR(scalars.gradient_norm / file_.read<double>("grad_norm")[0], 1.0, 1e-5);
    for (const Parameter& parameter : trainer.table().parameters()) {
      const std::string& name = parameter.name;
      EXPECT_LE(relative_error(without_key_bias(name, trainer.gradient(name)),
                               without_key_bias(name, file_.read("gradients/" + name))),
                1e-5)
          << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ReferenceTest, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

}  // namespace
}  // namespace mylos
