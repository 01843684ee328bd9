// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallelism, with every exchange along the data axis, against one rank that computes the same global
// batch alone.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/model/parameters.hpp"
#include "tests/parallel/equivalence.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/relative_error.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

/// Twelve heads can be divided among 1, 2, 3, 4 and 6 ranks.
ModelConfig model_of_heads(std::int64_t heads = 12) {
  ModelConfig model = small_model();
  model.heads = heads;
  return model;
}

constexpr TensorSplits heads_alone{};
constexpr TensorSplits all_splits{.vocab = true, .sequence = true};
constexpr TensorSplits every_split[] = {
    heads_alone, {.vocab = true, .sequence = false}, {.vocab = false, .sequence = true}, all_splits};

class Tensor : public testing::Test {
 protected:
  /// A multiple of 2, 3, 4 and 6, so that 2, 3, 4 or 6 ranks can divide the rows.
  static constexpr std::int64_t seq_len = 36;

  int ranks() const { return world_->size(); }
  /// A number of micro-batches for which a part of the rows ends in the middle of a sample on 2 to 4 ranks.
  std::int64_t odd_accumulation() const { return ranks() == 3 ? 3 : std::max(1, 8 / ranks()); }

  /// Calls visit(config) for each possible division of the ranks along the tensor axis (at least 2) and the
  /// data axis, and for each exchange. The exchanges other than ddp need at least two ranks along the data
  /// axis; they shard over all of these or over pairs of them.
  template <class Visit>
  void for_all_layouts(const ModelConfig& model, std::int64_t accumulation, const TensorSplits& splits,
                       const Visit& visit) {
    for (std::int64_t tensor = 2; tensor <= ranks(); ++tensor) {
      const std::int64_t data = ranks() / tensor;
      if (ranks() % tensor != 0 || model.heads % tensor != 0) continue;
      if (global_batch % (data * accumulation) != 0) continue;
      for (const std::string exchange : {"ddp", "zero1", "zero2", "zero3"}) {
        std::vector<std::int64_t> shards;
        if (exchange == "ddp") {
          shards = {1};
        } else if (data > 1) {
          shards = {data};
          if (data > 2 && data % 2 == 0) shards.push_back(2);
        }
        for (const std::int64_t shard : shards) {
          SCOPED_TRACE(fmt::format("tensor {} x data {}, {} among {}, accumulation {}{}{}", tensor, data,
                                   exchange, shard, accumulation, splits.vocab ? ", vocab" : "",
                                   splits.sequence ? ", sequence" : ""));
          RunConfig config = mini_config(model, global_batch, seq_len, data, accumulation);
          config.parallel.tensor = tensor;
          config.parallel.splits = splits;
          set_exchange(config, exchange, shard);
          visit(config);
        }
      }
    }
  }

  /// The number of elements in the gradients of norms that this rank owns: scale, bias, and the padding that
  /// aligns the bias.
  std::int64_t norm_elements(const RunConfig& config) const {
    const Coordinates coordinates(config.parallel.extents(), ranks(), world_->rank());
    const ParameterTable table = parameters_of(config.model).local(coordinates, config.parallel.splits);
    std::int64_t sum = 0;
    for (const Unit& unit : table.units()) {
      const std::int64_t grain = ParameterTable::alignment * config.parallel.shard;
      const std::int64_t owned = (unit.size + grain - 1) / grain * ParameterTable::alignment;
      const std::int64_t begin = coordinates.index(Axis::shard) * owned;
      std::int64_t end_of_scale = -1;  // if this rank owns some of it
      for (const int index : unit.parameters) {
        const Parameter& parameter = table.parameters()[static_cast<std::size_t>(index)];
        if (!parameter.is_norm) continue;
        const std::int64_t from = std::max(begin, parameter.offset);
        const std::int64_t to = std::min(begin + owned, parameter.offset + parameter.size());
        const bool is_scale = parameter.name.ends_with("weight");
        if (from < to) sum += to - (is_scale || end_of_scale < 0 ? from : end_of_scale);
        end_of_scale = is_scale && from < to ? to : -1;
      }
    }
    return sum;
  }

  Outcome alone(const ModelConfig& model, std::int64_t steps) {
    return train_alone(backend_, *self_, mini_config(model, global_batch, seq_len), steps);
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

TEST_F(Tensor, EveryLayoutComputesWhatOneRankDoes) {
  constexpr std::int64_t steps = 20;
  const ModelConfig model = model_of_heads(ranks() == 8 ? 24 : 12);
  RunConfig whole = mini_config(model, global_batch, seq_len);
  whole.guard.clip_norm = 0.5F;
  const Outcome oracle = train_alone(backend_, *self_, whole, steps);
  for (const auto& step : oracle.steps) EXPECT_GT(step.gradient_norm, whole.guard.clip_norm);
  for (const TensorSplits& splits : {heads_alone, all_splits}) {
    for_all_layouts(model, 1, splits, [&](RunConfig config) {
      config.guard.clip_norm = whole.guard.clip_norm;
      expect_equal_to_rounding(config, train(backend_, *world_, config, steps), oracle);
    });
  }
}

TEST_F(Tensor, ComputesWhatOneRankDoesWithEveryFeature) {
  constexpr std::int64_t steps = 3;
  Recompute recompute = Recompute::none;
  for (const bool tied : {true, false}) {
    for (const float dropout : {0.0F, 0.2F}) {
      ModelConfig model = model_of_heads();
      model.feed_forward = tied ? 5 * model.width / 2 : 0;
      model.tied = tied;
      model.dropout = dropout;
      const Outcome oracle = alone(model, steps);
      for (const TensorSplits& splits : every_split) {
        for_all_layouts(model, odd_accumulation(), splits, [&](RunConfig config) {
          config.model.logits_bytes = 0;  // slices of 64 rows
          config.train.recompute = recompute;
          recompute = recompute == Recompute::none        ? Recompute::selective
                      : recompute == Recompute::selective ? Recompute::block
                                                          : Recompute::none;
          SCOPED_TRACE(fmt::format("{}, dropout {}, recompute {}", tied ? "tied" : "untied", dropout,
                                   static_cast<int>(config.train.recompute)));
          expect_equal_to_rounding(config, train(backend_, *world_, config, steps), oracle);
        });
      }
    }
  }
}

/// The optimizer test shows that the same gradients give the same bits.
TEST_F(Tensor, TrainsWeightsWithoutMasters) {
  constexpr std::int64_t steps = 4;
  const Outcome oracle = alone(model_of_heads(), steps);
  for (const TensorSplits& splits : {heads_alone, all_splits}) {
    for_all_layouts(model_of_heads(), 1, splits, [&](RunConfig config) {
      config.train.dtype = DType::bf16;
      config.train.grad_dtype = DType::bf16;
      config.optimizer.keeps_master = false;
      const Outcome outcome = train(backend_, *world_, config, steps);
      for (std::size_t step = 0; step < oracle.steps.size(); ++step) {
        EXPECT_NEAR(outcome.steps[step].loss / oracle.steps[step].loss, 1.0, 2e-3) << "step " << step + 1;
        EXPECT_NEAR(outcome.steps[step].gradient_norm / oracle.steps[step].gradient_norm, 1.0, 3e-2);
      }
    });
  }
}

TEST_F(Tensor, EvaluatesAsOneRankDoes) {
  if (model_of_heads().heads % ranks() != 0) return;
  const RunConfig whole = mini_config(model_of_heads(), global_batch, seq_len);
  const auto evaluated = [&](Communicator& world, const RunConfig& config) {
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, world, config);
    for (std::int64_t step = 1; step <= 5; ++step) trainer.step(walk_tokens(config, step));
    trainer.executor().load_evaluation(walk_tokens(config, 6));
    trainer.executor().evaluate();
    const auto losses = trainer.executor().evaluation_losses();
    const auto correct = trainer.executor().evaluation_correct();
    return std::pair(std::vector<float>(losses.begin(), losses.end()),
                     std::vector<std::int32_t>(correct.begin(), correct.end()));
  };
  const auto [losses, correct] = evaluated(*self_, whole);
  EXPECT_GT(std::ranges::count(correct, 1), 0);
  for (const TensorSplits& splits : every_split) {
    RunConfig config = whole;
    config.model.logits_bytes = 0;  // seven slices instead of one
    config.parallel.tensor = ranks();
    config.parallel.splits = splits;
    const auto [own_losses, own_correct] = evaluated(*world_, config);
    EXPECT_LE(relative_error(own_losses, losses), 1e-5);
    EXPECT_EQ(own_correct, correct);
  }
}

/// Parts of any size: some of these vocabularies do not divide evenly, and some leave ranks without a part.
TEST_F(Tensor, DividesEveryVocabulary) {
  constexpr std::int64_t steps = 2;
  struct Vocabulary {
    std::int64_t heads, tokens, multiple;
  };
  for (const Vocabulary& vocabulary :
       {Vocabulary{12, 50257, 1}, Vocabulary{5, 128, 128}, Vocabulary{12, 257, 1024}, Vocabulary{12, 3, 1}}) {
    SCOPED_TRACE(vocabulary.tokens);
    ModelConfig model = model_of_heads();
    model.heads = vocabulary.heads;
    model.width = 5 * 12;
    model.vocab = vocabulary.tokens;
    model.vocab_multiple = vocabulary.multiple;
    model.layers = 1;
    const bool is_real = vocabulary.tokens > 10'000;  // GPT-2's, which is slow
    const Outcome oracle = alone(model, steps);
    for_all_layouts(model, 1, {.vocab = true, .sequence = false}, [&](const RunConfig& config) {
      if (is_real && config.parallel.data > 1) return;
      expect_equal_to_rounding(config, train(backend_, *world_, config, steps), oracle);
    });
  }
}

/// Each block sums the residual stream twice forward and twice backward per micro-batch. Block recomputation
/// adds one sum: it does not repeat the second of the forward pass. If the vocabulary is divided, the
/// embedding and the head add one sum each, and the loss gathers four numbers per row and part. Sequence
/// parallelism scatters each of these sums. It gathers six times per block: two norms for the products
/// forward, two gradients backward, and the norms again. It also gathers the norm before the head and the
/// gradient after the embedding. At the end of a step, it sums the gradients of the norms.
TEST_F(Tensor, SendsExactlyWhatTheFormulaSays) {
  constexpr std::int64_t steps = 2;
  const auto expect_formula = [&](const RunConfig& config, const TensorSplits& splits) {
    const ModelConfig& model = config.model;
    // Bytes of an activation and of a gradient; the loss's numbers are fp32.
    const std::int64_t a = config.train.dtype == DType::fp32 ? 4 : 2;
    const std::int64_t g = config.train.grad_dtype == DType::fp32 ? 4 : 2;
    const std::int64_t rows = config.train.micro_batch * seq_len;
    const std::int64_t residual_bytes = rows * model.width * a;
    const std::int64_t num_micro_batches = steps * config.train.accumulation;
    const std::int64_t sums =
        (config.train.recompute == Recompute::block ? 5 : 4) * model.layers + (splits.vocab ? 2 : 0);
    std::map<CommOperation, std::int64_t> bytes;
    if (splits.sequence) {
      bytes[CommOperation::reduce_scatter] = num_micro_batches * sums * residual_bytes;
      bytes[CommOperation::all_gather] = num_micro_batches * (6 * model.layers + 2) * residual_bytes;
      bytes[CommOperation::all_reduce] = steps * norm_elements(config) * g;
    } else {
      bytes[CommOperation::all_reduce] = num_micro_batches * sums * residual_bytes;
    }
    if (splits.vocab)
      bytes[CommOperation::all_gather] += num_micro_batches * 4 * rows * 4 * config.parallel.tensor;
    // Without a data axis, the guard's sums are counted on the tensor axis.
    if (config.parallel.data == 1) bytes[CommOperation::all_reduce] += steps * 8;
    const Sent sent = sent_by_rings(backend_, config, steps);
    std::map<CommOperation, std::int64_t> payload;
    for (const TrafficRow& row : sent.calls) {
      if (row.axis == "tensor") payload[row.operation] = static_cast<std::int64_t>(row.payload_bytes);
    }
    std::erase_if(bytes, [](const auto& entry) { return entry.second == 0; });
    EXPECT_EQ(payload, bytes);

    if (calls_are_checked || config.parallel.data > 1) return;  // messages for other purposes count too
    const auto summed = [&](std::int64_t width, std::int64_t count) {
      return width * sent_by_ring_all_reduce(count, config.parallel.tensor, world_->rank());
    };
    constexpr std::int64_t scalars = 2;  // loss sum and squared norm
    std::int64_t wire_bytes = steps * summed(4, scalars);
    if (splits.sequence) {
      const std::int64_t aligned = (model.width + 63) / 64 * 64;
      wire_bytes += steps * (2 * model.layers + 1) * summed(g, aligned + model.width);
    } else {
      wire_bytes += num_micro_batches * sums * summed(a, rows * model.width);
    }
    for (const CommOperation half : {CommOperation::reduce_scatter, CommOperation::all_gather})
      wire_bytes += sent_by_half_a_ring(bytes[half], config.parallel.tensor);
    EXPECT_EQ(sent.wire_bytes, wire_bytes);
  };
  using enum DType;
  struct Case {
    Recompute recompute;
    DType dtype, grad_dtype;
  };
  for (const Case& what : {Case{Recompute::none, fp32, fp32}, Case{Recompute::selective, fp32, fp32},
                           Case{Recompute::block, fp32, fp32}, Case{Recompute::none, bf16, fp32},
                           Case{Recompute::block, bf16, bf16}, Case{Recompute::none, fp16, fp16}}) {
    SCOPED_TRACE(fmt::format("{}, gradients {}", name_of(what.dtype), name_of(what.grad_dtype)));
    for (const TensorSplits& splits : every_split) {
      for_all_layouts(model_of_heads(), odd_accumulation(), splits, [&](RunConfig config) {
        config.train.recompute = what.recompute;
        config.train.dtype = what.dtype;
        config.train.grad_dtype = what.grad_dtype;
        expect_formula(config, splits);
      });
    }
  }
}

/// With 512 rows or more, a backend may keep packed copies of weights.
TEST_F(Tensor, MultipliesPartsOfWeightsWithEveryBackend) {
  constexpr std::int64_t steps = 2;
  constexpr std::int64_t length = 128;
  ModelConfig model = model_of_heads();
  model.context = length;
  const Outcome oracle = train_alone(backend_, *self_, mini_config(model, global_batch, length), steps);
  for (const std::string& name : compute_backend_names()) {
    if (name == "kokkos") continue;
    SCOPED_TRACE(name);
    for (const TensorSplits& splits : {heads_alone, all_splits}) {
      for_all_layouts(model, 1, splits, [&](RunConfig config) {
        config.train.seq_len = length;
        expect_equal_to_rounding(config, train(test_backends(1).at(name), *world_, config, steps), oracle);
      });
    }
  }
}

}  // namespace
}  // namespace mylos
