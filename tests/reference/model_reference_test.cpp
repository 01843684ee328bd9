// SPDX-License-Identifier: BSD-3-Clause
// Models of other programs against transformers and torch in double precision
// (tests/reference/make_model_reference.py): losses by token, texts, and fine-tuning, in every layout; and
// the bytes that ranks request to load them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "app/inference/text_generator.hpp"
#include "app/train/model_state.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/gather_values.hpp"
#include "tests/io/model_test_util.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t num_windows = 4;
constexpr std::int64_t seq_len = 16;

std::vector<double> reals(const Json& entry, const char* key) {
  std::vector<double> values;
  for (const Json& value : entry.elements(key)) values.push_back(std::stod(value.dump()));
  return values;
}

std::vector<std::int32_t> tokens_of(const Json& entry, const char* key) {
  const std::vector<std::int64_t> ids = entry.integers(key);
  return {ids.begin(), ids.end()};
}

/// Writes a folder with the model of `heads` heads that make_model_reference.py describes.
void write_model_of_heads(const fs::path& folder, std::int64_t heads, bool tied) {
  ModelConfig model = test::reference_shape;
  model.heads = heads;
  model.width = heads * 17;
  model.tied = tied;
  test::Weights weights = test::reference_weights(model);
  std::map<std::string, test::HandTensor> tensors;
  for (const auto& [name, shape] : test::shapes_of(model)) {
    std::vector<float>& values = weights.at(name);
    const bool is_norm_weight = shape.size() == 1 && name.ends_with("weight");
    for (float& value : values) value = 2.0F * value + (is_norm_weight ? 1.0F : 0.0F);
    tensors[name] = {.shape = shape, .bytes = test::bytes_of_floats(values)};
  }
  fs::create_directories(folder);
  test::spill(folder / "model.safetensors", test::safetensors_file(tensors));
  test::spill(
      folder / "config.json",
      fmt::format(R"({{"model_type": "gpt2", "n_layer": {}, "n_head": {}, "n_embd": {}, "n_positions": {}, )"
                  R"("vocab_size": {}, "tie_word_embeddings": {}}})",
                  model.layers, model.heads, model.width, model.context, model.vocab, model.tied));
}

/// How the ranks divide a model and the samples.
struct Layout {
  std::int64_t data;
  std::int64_t tensor;
  TensorSplits splits;
  const char* exchange;

  std::string text() const {
    return fmt::format("{} data ranks, {}, {} tensor ranks{}{}", data, exchange, tensor,
                       splits.vocab ? ", vocab" : "", splits.sequence ? ", sequence" : "");
  }
  void set(RunConfig& config) const {
    config.parallel.tensor = tensor;
    config.parallel.splits = splits;
    set_exchange(config, exchange, exchange == std::string_view("ddp") ? 1 : data);
  }
};

/// A model without gradients and optimizer, as commands load it. The file has been read when the constructor
/// returns.
struct LoadedModel {
  LoadedModel(ComputeBackend& backend, Communicator& world, const RunConfig& config, const WeightReader& read)
      : grid(world, config.parallel.extents(), config.parallel.groups(), traffic, nullptr),
        program(backend, grid, config, RankRole::inference),
        executor(backend, ledger, grid, program) {
    restore_weights(backend, read, state);
  }

  MemoryLedger ledger;
  TrafficCounter traffic;
  ProcessGrid grid;
  CheckedProgram program;
  ModelExecutor executor;
  RankState state{program, executor};
};

WeightReader reader_of(const ModelFile& file) {
  return [&](const TensorInfo& tensor, const std::vector<TensorPart>& parts) {
    return file.read(tensor, parts);
  };
}

class ModelReference : public testing::Test {
 protected:
  static Json read_reference() {
    return Json::parse(
        read_text_file(std::string(std::getenv("MYLOS_SOURCE")) + "/tests/reference/model_reference.json"));
  }

  /// A model by its name in the reference.
  std::unique_ptr<ModelFile> open(const std::string& name) const {
    fs::path path = test::reference_model(name);
    if (name.ends_with(" heads")) {
      path = scratch_.path() / name;
      if (!fs::exists(path)) write_model_of_heads(path, std::stoi(name), name != "4 heads");
    }
    return open_model_file(path, [](const std::string&) {});
  }
  static ModelConfig shape_of(const ModelFile& file) {
    ModelConfig model = file.description().model;
    model.dropout = 0.0F;
    return model;
  }

  /// Calls visit(layout) for each layout of all ranks that `model` allows and that divides four samples.
  template <class Visit>
  void for_each_layout(const ModelConfig& model, const Visit& visit) {
    for (std::int64_t tensor = 1; tensor <= world_->size(); ++tensor) {
      const std::int64_t data = world_->size() / tensor;
      if (world_->size() % tensor != 0 || model.heads % tensor != 0 || num_windows % data != 0) continue;
      for (const char* exchange : {"ddp", "zero3"}) {
        for (const TensorSplits splits :
             {TensorSplits{}, {.vocab = true, .sequence = false}, {.vocab = true, .sequence = true}}) {
          if (splits.vocab && tensor == 1) continue;
          if (splits.sequence && seq_len % tensor != 0) continue;
          const Layout layout{data, tensor, splits, exchange};
          SCOPED_TRACE(layout.text());
          ++num_layouts_;
          visit(layout);
        }
      }
    }
  }

  /// The configuration of the reference's steps, without learning rate and limit of the norm.
  RunConfig training_config(const ModelConfig& model, const Layout& layout) const {
    const Json optimizer = reference_.at("optimizer");
    RunConfig config = mini_config(model, 8, seq_len, layout.data, reference_.integer("micro_batches"));
    layout.set(config);
    config.optimizer.values.set("optim.beta1", optimizer.real("beta1"));
    config.optimizer.values.set("optim.beta2", optimizer.real("beta2"));
    config.optimizer.values.set("optim.epsilon", optimizer.real("epsilon"));
    config.optimizer.weight_decay = static_cast<float>(optimizer.real("weight_decay"));
    return config;
  }
  /// The tokens (8, T + 1) of step `step`, from 0.
  std::span<const std::int32_t> step_tokens(std::size_t step) const {
    constexpr std::size_t size = 8 * (seq_len + 1);
    return std::span(steps_).subspan(step * size, size);
  }

  /// Expects that this rank has requested no more than the bytes of the boxes that it owns, and all ranks
  /// together no more than those that the layout needs, each plus 1 %.
  void expect_few_bytes(const ModelFile& file, const ProcessGrid& grid, const RankState& state,
                        const Layout& layout) {
    const auto bytes_each = static_cast<std::int64_t>(size_of(file.description().dtype));
    std::int64_t own = 0;
    for (const UnitPart& part : state.owned())
      for (const Piece& piece : pieces_of(state.table(), part))
        for (const PlacedBox& box : piece.boxes()) own += box.box.size();
    const std::int64_t requested = file.bytes_requested();
    EXPECT_LE(static_cast<double>(requested), 1.01 * static_cast<double>(own * bytes_each));
    std::int64_t needed = 0;
    for (const auto& [name, shape] : test::shapes_of(file.description().model)) {
      const bool of_tokens = name == "wte.weight" || name == "lm_head.weight";
      const bool is_divided = of_tokens ? layout.splits.vocab
                                        : name.find(".c_attn.") != std::string::npos ||
                                              name.find(".c_fc.") != std::string::npos ||
                                              name.ends_with(".c_proj.weight");
      needed += product(shape) * (is_divided ? 1 : layout.tensor);
    }
    needed *= bytes_each * (layout.exchange == std::string_view("ddp") ? layout.data : 1);
    std::int64_t all = 0;
    for (const std::int64_t bytes : gather_values(backend_, grid.group(all_axes), {requested})) all += bytes;
    EXPECT_GE(all, needed) << "every rank has read what it holds";
    EXPECT_LE(static_cast<double>(all), 1.01 * static_cast<double>(needed));
  }

  void TearDown() override { EXPECT_GT(num_layouts_, 0) << "no model can be divided among these ranks"; }

  int num_layouts_ = 0;
  Json reference_ = read_reference();
  std::vector<std::int32_t> steps_ = tokens_of(reference_, "steps");
  test::ScratchDirectory scratch_;
  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

TEST_F(ModelReference, LossesByToken) {
  const std::vector<std::int32_t> windows = tokens_of(reference_, "windows");
  for (const Json& entry : reference_.elements("losses")) {
    SCOPED_TRACE(entry.text("model"));
    const std::unique_ptr<ModelFile> file = open(entry.text("model"));
    const std::vector<double> losses = reals(entry, "losses");
    double mean = 0.0;
    for (const double loss : losses) mean += loss / static_cast<double>(losses.size());
    for_each_layout(shape_of(*file), [&](const Layout& layout) {
      RunConfig config = mini_config(shape_of(*file), num_windows, seq_len, layout.data);
      layout.set(config);
      LoadedModel model(backend_, *world_, config, reader_of(*file));
      const std::int64_t rows = config.train.micro_batch;
      const std::int64_t first = model.grid.coordinates().index(sample_axes) * rows;
      model.executor.load_evaluation(std::span(windows).subspan(
          static_cast<std::size_t>(first * (seq_len + 1)), static_cast<std::size_t>(rows * (seq_len + 1))));
      model.executor.evaluate();
      const std::span<const float> seen = model.executor.evaluation_losses();
      ASSERT_EQ(std::ssize(seen), rows * seq_len);
      for (std::size_t i = 0; i < seen.size(); ++i)
        EXPECT_NEAR(seen[i], losses[static_cast<std::size_t>(first * seq_len) + i], 2e-5 * mean) << i;
    });
  }
}

TEST_F(ModelReference, GreedyTexts) {
  for (const char* name : {"fp32", "4 heads", "5 heads"}) {
    SCOPED_TRACE(name);
    const std::unique_ptr<ModelFile> file = open(name);
    std::vector<Json> entries = reference_.elements("greedy");
    std::erase_if(entries, [&](const Json& entry) { return entry.text("model") != name; });
    ASSERT_EQ(entries.size(), 4U);
    for_each_layout(shape_of(*file), [&](const Layout& layout) {
      RunConfig config = mini_config(shape_of(*file), layout.data, seq_len, layout.data);
      layout.set(config);
      config.cache = generation_cache(seq_len, 3);
      LoadedModel model(backend_, *world_, config, reader_of(*file));
      GenerationSettings settings;
      settings.sampling.temperature = 0.0;
      settings.most_tokens = seq_len - 1;
      const Coordinates& at = model.grid.coordinates();
      std::vector<std::vector<std::int32_t>> prompts;
      for (const Json& entry : entries) prompts.push_back(tokens_of(entry, "prompt"));
      std::vector<TextJob> jobs;
      for (std::int64_t i = at.index(sample_axes); i < std::ssize(entries); i += at.extent(sample_axes))
        jobs.push_back({.prompt = i, .tokens = prompts[static_cast<std::size_t>(i)]});
      TextGenerator generator(backend_, model.grid, model.program, model.executor, settings);
      for (const Completion& text : generator.run(jobs)) {
        SCOPED_TRACE(fmt::format("prompt {}", text.prompt));
        const Json& entry = entries[static_cast<std::size_t>(text.prompt)];
        const std::vector<std::int32_t> tokens = tokens_of(entry, "tokens");
        const std::vector<double> logprobs = reals(entry, "logprobs");
        ASSERT_GE(text.tokens.size(), tokens.size());
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          EXPECT_EQ(text.tokens[i], tokens[i]) << i;
          EXPECT_NEAR(text.logprobs[i], logprobs[i], 1e-5) << i;
        }
      }
    });
  }
}

TEST_F(ModelReference, FineTuning) {
  for (const Json& entry : reference_.elements("training")) {
    SCOPED_TRACE(entry.text("model"));
    const std::unique_ptr<ModelFile> file = open(entry.text("model"));
    const std::vector<double> losses = reals(entry, "losses");
    const std::vector<double> norms = reals(entry, "norms");
    ASSERT_EQ(losses.size(), 6U);
    for_each_layout(shape_of(*file), [&](const Layout& layout) {
      RunConfig config = training_config(shape_of(*file), layout);
      config.lr.peak = entry.real("lr");
      config.guard.clip_norm = static_cast<float>(entry.real("clip_norm"));
      MemoryLedger ledger;
      MiniTrainer trainer(backend_, ledger, *world_, config);
      restore_initial(backend_, reader_of(*file), trainer.state());
      for (std::size_t step = 0; step < losses.size(); ++step) {
        const StepScalars scalars = trainer.step(step_tokens(step));
        EXPECT_NEAR(scalars.loss / losses[step], 1.0, 1e-5) << "step " << step + 1;
        EXPECT_NEAR(scalars.gradient_norm / norms[step], 1.0, 1e-4) << "step " << step + 1;
      }
    });
  }
}

/// The master has the file's values, although the steps compute in bf16.
TEST_F(ModelReference, LearningRateZeroLeavesTheFilesValues) {
  for (const char* name : {"fp32", "fp16_bare", "llmc_bf16.bin", "4 heads", "5 heads"}) {
    SCOPED_TRACE(name);
    const std::unique_ptr<ModelFile> file = open(name);
    const test::Weights expected = test::read_all(*file);
    for_each_layout(shape_of(*file), [&](const Layout& layout) {
      RunConfig config = training_config(shape_of(*file), layout);
      config.train.dtype = DType::bf16;
      config.train.grad_dtype = DType::bf16;
      config.lr.peak = 0.0;
      MemoryLedger ledger;
      MiniTrainer trainer(backend_, ledger, *world_, config);
      restore_initial(backend_, reader_of(*file), trainer.state());
      for (std::size_t step = 0; step < 2; ++step)
        EXPECT_GT(trainer.step(step_tokens(step)).gradient_norm, 0);
      for (const auto& [weight, values] : expected) EXPECT_TRUE(trainer.weight(weight) == values) << weight;
    });
  }
}

TEST_F(ModelReference, RanksRequestTheBytesThatTheyNeed) {
  for (const char* name : {"fp32", "bf16_shards", "llmc_fp32.bin", "llmc_bf16.bin", "4 heads", "5 heads"}) {
    SCOPED_TRACE(name);
    for_each_layout(shape_of(*open(name)), [&](const Layout& layout) {
      const std::unique_ptr<ModelFile> for_training = open(name);
      const RunConfig config = training_config(shape_of(*for_training), layout);
      MemoryLedger ledger;
      MiniTrainer trainer(backend_, ledger, *world_, config);
      restore_initial(backend_, reader_of(*for_training), trainer.state());
      trainer.state().settle();
      expect_few_bytes(*for_training, trainer.grid(), trainer.state(), layout);
      const std::unique_ptr<ModelFile> for_inference = open(name);
      LoadedModel model(backend_, *world_, config, reader_of(*for_inference));
      model.state.settle();
      expect_few_bytes(*for_inference, model.grid, model.state, layout);
    });
  }
}

}  // namespace
}  // namespace mylos
