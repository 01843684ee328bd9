// SPDX-License-Identifier: BSD-3-Clause
// With data and tensor parallelism, an evaluation counts each target once, including the last, whatever the
// stride of its windows.
#include "app/train/evaluator.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

constexpr std::int64_t seq_len = 12;
// Not a multiple of the number of windows that some layouts read at a time.
constexpr std::int64_t num_windows = 7;

class Evaluation : public testing::Test {
 protected:
  Evaluation() {
    TokenFileWriter writer(file());
    // The last half window is not read.
    std::vector<std::uint16_t> tokens(num_windows * seq_len + 1 + seq_len / 2);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::uint16_t>(
          philox(stream_key(3, "tokens"), static_cast<std::uint32_t>(i), 0, 0, 0).x[0] % 5);
    writer.append(tokens);
    writer.finish();
  }

  /// A vocabulary so small that some guesses are right.
  static RunConfig config(std::int64_t data, std::int64_t micro_batch) {
    ModelConfig model;
    model.layers = 1;
    model.heads = 12;
    model.width = 24;
    model.context = seq_len;
    model.vocab = 5;
    return mini_config(model, data * micro_batch, seq_len, data);
  }
  std::filesystem::path file() const { return scratch_.path() / "valid.bin"; }
  TokenDataset dataset() const {
    return open_dataset(parse_sources(file().string()), TokenFile::most_ids, seq_len, 1);
  }
  int ranks() const { return world_->size(); }
  /// The configurations with stages on all ranks: on 4, also with two tensor or data ranks each.
  std::vector<RunConfig> with_stages(std::int64_t micro_batch) const {
    std::vector<RunConfig> runs;
    const auto add = [&](int data, int tensor, int pipeline, const char* schedule, int chunks = 1) {
      RunConfig run = config(data, micro_batch);
      run.model.layers = 4;
      run.parallel.tensor = tensor;
      run.parallel.pipeline = pipeline;
      run.parallel.chunks = chunks;
      run.parallel.schedule = &find_kind(schedules(), schedule);
      run.train.accumulation = pipeline;
      run.train.global_batch *= pipeline;
      runs.push_back(run);
    };
    if (ranks() > 1 && ranks() <= 4) add(1, 1, ranks(), "1f1b");
    if (ranks() == 2) add(1, 1, 2, "interleaved", 3);
    if (ranks() == 2 || ranks() == 3) add(1, 1, ranks(), "zero_bubble_v");
    if (ranks() == 2 || ranks() == 3) {  // fewer micro-batches per step than an evaluation takes at once
      add(1, 1, ranks(), "zero_bubble_v");
      runs.back().train.global_batch /= runs.back().train.accumulation;
      runs.back().train.accumulation = 1;
      add(1, 1, ranks(), "zero_bubble_v");
      runs.back().parallel.in_flight = 1;
    }
    if (ranks() == 4) add(1, 2, 2, "interleaved", 2);
    if (ranks() == 4) add(2, 1, 2, "zero_bubble_v");
    return runs;
  }
  static std::string text_of(const RunConfig& run) {
    return fmt::format("{} stages of {}, {} tensor ranks, batches of {}", run.parallel.pipeline,
                       run.parallel.schedule->name, run.parallel.tensor, run.train.micro_batch);
  }

  /// The result of one window.
  struct Window {
    double loss = 0.0;  ///< sum
    std::int64_t correct = 0;
  };
  std::vector<Window> windows(std::int64_t layers = 1) {
    MemoryLedger ledger;
    RunConfig run = config(1, 1);
    run.model.layers = layers;
    MiniTrainer trainer(backend_, ledger, *self_, run);
    const TokenDataset data = dataset();
    std::vector<Window> windows(num_windows);
    std::vector<std::int32_t> tokens(seq_len + 1);
    for (std::int64_t i = 0; i < num_windows; ++i) {
      data.read(0, i * seq_len, tokens);
      trainer.executor().load_evaluation(tokens);
      trainer.executor().evaluate();
      Window& window = windows[static_cast<std::size_t>(i)];
      for (const float loss : trainer.executor().evaluation_losses()) window.loss += loss;
      for (const std::int32_t hit : trainer.executor().evaluation_correct()) window.correct += hit;
    }
    return windows;
  }

  /// Evaluates on the layout of `run` with limits on the number of windows from 0 (no limit) to one more than
  /// there are.
  void expect_windows(const RunConfig& run, const std::vector<Window>& expected) {
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *world_, run);
    for (std::int64_t most = 0; most <= num_windows + 1; ++most) {
      SCOPED_TRACE(fmt::format("at most {} windows", most));
      const EvalResult seen =
          *evaluate(trainer.executor(), backend_, dataset(), trainer.grid(), {.max_windows = most});
      const std::int64_t count = most == 0 ? num_windows : std::min(most, num_windows);
      double loss = 0.0;
      std::int64_t correct = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        loss += expected[static_cast<std::size_t>(i)].loss;
        correct += expected[static_cast<std::size_t>(i)].correct;
      }
      const auto tokens = static_cast<double>(count * seq_len);
      EXPECT_EQ(seen.tokens, count * seq_len);
      EXPECT_NEAR(seen.loss, loss / tokens, 1e-6);
      EXPECT_NEAR(seen.accuracy, static_cast<double>(correct) / tokens, 1e-9);
      EXPECT_TRUE(count < num_windows || correct > 0);
    }
  }

  test::ScratchDirectory scratch_;
  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

TEST_F(Evaluation, CountsEachWindowOnceOnEveryLayout) {
  const std::vector<Window> expected = windows();
  for (int tensor = 1; tensor <= ranks(); ++tensor) {
    if (ranks() % tensor != 0 || 12 % tensor != 0) continue;
    const std::int64_t data = ranks() / tensor;
    for (const char* exchange : {"ddp", "zero2", "zero3"}) {
      for (const TensorSplits& splits : {TensorSplits{}, TensorSplits{.vocab = true, .sequence = true}}) {
        if (tensor == 1 && splits.vocab) continue;
        RunConfig run = config(data, 1);
        run.parallel.tensor = tensor;
        run.parallel.splits = splits;
        set_exchange(run, exchange, exchange == std::string_view("ddp") ? 1 : data);
        for (const std::int64_t micro_batch : {1, 2, 9}) {
          SCOPED_TRACE(fmt::format("tensor {}, {}, vocab and sequence {}, batches of {}", tensor, exchange,
                                   splits.vocab, micro_batch));
          run.train.micro_batch = micro_batch;
          run.train.global_batch = data * micro_batch;
          expect_windows(run, expected);
        }
      }
    }
  }
}

/// Fewer batches than stages included.
TEST_F(Evaluation, CountsEachWindowOnceOnEveryStage) {
  const std::vector<Window> expected = windows(4);
  for (const std::int64_t micro_batch : {1, 2, 9}) {
    for (const RunConfig& run : with_stages(micro_batch)) {
      SCOPED_TRACE(text_of(run));
      expect_windows(run, expected);
    }
  }
}

/// With stages, which run empty when they agree, rarely: every 4 passes per stage.
TEST_F(Evaluation, IsInterrupted) {
  std::vector<RunConfig> runs = with_stages(1);
  runs.push_back(config(ranks(), 1));
  for (const RunConfig& run : runs) {
    SCOPED_TRACE(text_of(run));
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *world_, run);
    const std::int64_t windows_of_round =
        trainer.grid().coordinates().extent(sample_axes) * trainer.executor().evaluated_micro_batches();
    const std::int64_t rounds = (num_windows + windows_of_round - 1) / windows_of_round;
    const std::int64_t pace = run.parallel.pipeline == 1 ? 1 : 4 * run.parallel.pipeline;
    int asked = 0;
    int most = std::numeric_limits<int>::max();
    const EvalOptions options{.is_interrupted = [&] { return ++asked > most; }};
    EXPECT_TRUE(evaluate(trainer.executor(), backend_, dataset(), trainer.grid(), options));
    EXPECT_EQ(asked, (rounds + pace - 1) / pace);
    most = asked - 1;
    asked = 0;
    EXPECT_FALSE(evaluate(trainer.executor(), backend_, dataset(), trainer.grid(), options));
  }
}

/// The losses of a diverged model exceed every integer in which a sum could be kept, or are infinite.
TEST_F(Evaluation, AddsLossesOfAnySize) {
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *world_, config(ranks(), 1));
  for (const float scale : {1e8F, 1e14F, 1e30F, 1e38F, std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(scale);
    // The logits are the sums of the token's row of the head, which is 0 except for token 0.
    std::vector<float> head(5 * 24, 0.0F);
    head[0] = scale;
    trainer.set_weight("wte.weight", head);
    trainer.set_weight("ln_f.weight", std::vector<float>(24, 0.0F));
    std::vector<float> bias(24, 0.0F);
    bias[0] = 1.0F;
    trainer.set_weight("ln_f.bias", bias);
    const EvalResult seen = *evaluate(trainer.executor(), backend_, dataset(), trainer.grid(), {});
    EXPECT_EQ(seen.tokens, num_windows * seq_len);
    if (!std::isfinite(scale)) {
      EXPECT_FALSE(std::isfinite(seen.loss));
      EXPECT_EQ(seen.accuracy, 0.0);  // no token has a probability
      continue;
    }
    // Token 0 has the loss 0, every other token `scale`.
    EXPECT_GT(seen.accuracy, 0.0);
    EXPECT_NEAR(seen.loss / scale, 1.0 - seen.accuracy, 1e-6);
  }
}

/// Every rank returns NaN, even if it evaluated no window itself.
TEST_F(Evaluation, ReturnsNanForANanLoss) {
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *world_, config(ranks(), 1));
  std::vector<float> row(5 * 24, 0.0F);
  std::fill_n(row.begin(), 24, std::numeric_limits<float>::quiet_NaN());
  trainer.set_weight("wte.weight", row);
  const EvalResult seen =
      *evaluate(trainer.executor(), backend_, dataset(), trainer.grid(), {.max_windows = 1});
  EXPECT_TRUE(std::isnan(seen.loss));
  EXPECT_EQ(seen.tokens, seq_len);
}

/// A vocabulary of five tokens of different lengths.
class Lengths final : public Tokenizer {
 public:
  explicit Lengths(std::uint16_t end_of_text) : end_of_text_(end_of_text) {}

  std::unique_ptr<Encoder> encoder() const override { return nullptr; }
  std::uint16_t end_of_text() const override { return end_of_text_; }
  TokenizerIdentity identity() const override { return {.name = "lengths", .ranks = ""}; }
  std::size_t last_cut(std::string_view) const override { return 0; }

 private:
  std::string bytes_of(std::uint16_t token) const override { return std::string(token + 1U, 'x'); }

  std::uint16_t end_of_text_;
};

class StridedEvaluation : public Evaluation {
 protected:
  StridedEvaluation() {
    std::uint32_t next = 0;
    for (const std::size_t size : {40, 5, 12, 1, 13, 2, 30}) {
      std::vector<std::uint16_t>& tokens = files_.emplace_back(size);
      for (std::uint16_t& token : tokens)
        token = static_cast<std::uint16_t>(philox(stream_key(4, "strided tokens"), next++, 0, 0, 0).x[0] % 5);
      TokenFileWriter writer(scratch_.path() / fmt::format("part{}.bin", files_.size()));
      writer.append(tokens);
      writer.finish();
    }
  }

  TokenDataset parts() const {
    return open_dataset(parse_sources((scratch_.path() / "part*.bin").string()), TokenFile::most_ids, seq_len,
                        1, "none", ShortFiles::read);
  }

  /// The losses of all tokens except each file's first, by a plain loop over windows on this rank alone.
  std::vector<TargetResult> targets(std::int64_t stride, std::int64_t layers = 1) {
    MemoryLedger ledger;
    RunConfig run = config(1, 1);
    run.model.layers = layers;
    MiniTrainer trainer(backend_, ledger, *self_, run);
    std::vector<TargetResult> results;
    for (const std::vector<std::uint16_t>& file : files_) {
      std::size_t done = 1;  // tokens of the file
      for (std::size_t begin = 0; done < file.size(); begin += static_cast<std::size_t>(stride)) {
        // All targets of the window have their losses here.
        std::vector<std::int32_t> window(seq_len + 1, -1);
        const std::size_t length = std::min(window.size(), file.size() - begin);
        std::copy_n(file.begin() + static_cast<std::ptrdiff_t>(begin), length, window.begin());
        trainer.executor().load_evaluation(window);
        trainer.executor().evaluate();
        for (; done < begin + length; ++done) {
          const std::size_t row = done - begin - 1;
          results.push_back({.token = file[done],
                             .loss = trainer.executor().evaluation_losses()[row],
                             .is_correct = trainer.executor().evaluation_correct()[row] != 0});
        }
      }
    }
    return results;
  }

  static constexpr std::int64_t num_targets = 39 + 4 + 11 + 12 + 1 + 29;
  std::vector<std::vector<std::uint16_t>> files_;
};

/// Expects equal tokens; equal losses to the last bit if no sum is split over ranks.
void expect_targets(const std::vector<TargetResult>& seen, const std::vector<TargetResult>& expected,
                    bool is_exact) {
  ASSERT_EQ(seen.size(), expected.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    ASSERT_EQ(seen[i].token, expected[i].token) << i;
    ASSERT_EQ(seen[i].is_correct, expected[i].is_correct) << i;
    if (is_exact) {
      ASSERT_EQ(seen[i].loss, expected[i].loss) << i;
    } else {
      ASSERT_NEAR(seen[i].loss, expected[i].loss, 1e-5) << i;
    }
  }
}

TEST_F(StridedEvaluation, CountsEachTargetOnceOnEveryLayout) {
  const TokenDataset data = parts();
  const Lengths tokenizer(4);
  for (const std::int64_t stride : {std::int64_t{1}, seq_len / 2, std::int64_t{7}, seq_len}) {
    const std::vector<TargetResult> expected = targets(stride);
    ASSERT_EQ(std::ssize(expected), num_targets);
    double loss = 0.0;
    std::int64_t correct = 0;
    std::int64_t bytes = 0;
    for (const TargetResult& target : expected) {
      loss += target.loss;
      correct += target.is_correct ? 1 : 0;
      bytes += target.token == 4 ? 0 : target.token + 1;
    }
    for (int tensor = 1; tensor <= ranks(); ++tensor) {
      if (ranks() % tensor != 0 || 12 % tensor != 0) continue;
      for (const std::int64_t micro_batch : {1, 2, 9}) {
        SCOPED_TRACE(fmt::format("stride {}, tensor {}, batches of {}", stride, tensor, micro_batch));
        RunConfig run = config(ranks() / tensor, micro_batch);
        run.parallel.tensor = tensor;
        MemoryLedger ledger;
        MiniTrainer trainer(backend_, ledger, *world_, run);
        std::vector<TargetResult> seen;
        const auto take = [&](std::span<const TargetResult> results) {
          seen.insert(seen.end(), results.begin(), results.end());
        };
        const EvalResult result =
            *evaluate(trainer.executor(), backend_, data, trainer.grid(),
                      {.stride = stride, .tokenizer = &tokenizer, .take_targets = take});
        expect_targets(seen, expected, tensor == 1);
        EXPECT_EQ(result.tokens, num_targets);
        EXPECT_NEAR(result.loss, loss / num_targets, 1e-6);
        EXPECT_EQ(std::llround(result.accuracy * num_targets), correct);
        EXPECT_EQ(result.bytes, bytes);
        EXPECT_NEAR(result.bits_per_byte().value_or(0.0), loss / std::log(2.0) / static_cast<double>(bytes),
                    1e-6);
      }
    }
  }
}

TEST_F(StridedEvaluation, CountsEachTargetOnceOnEveryStage) {
  const TokenDataset data = parts();
  const std::vector<TargetResult> expected = targets(7, 4);
  for (const std::int64_t micro_batch : {1, 9}) {
    for (const RunConfig& run : with_stages(micro_batch)) {
      SCOPED_TRACE(text_of(run));
      MemoryLedger ledger;
      MiniTrainer trainer(backend_, ledger, *world_, run);
      std::vector<TargetResult> seen;
      const auto take = [&](std::span<const TargetResult> results) {
        seen.insert(seen.end(), results.begin(), results.end());
      };
      const EvalResult result =
          *evaluate(trainer.executor(), backend_, data, trainer.grid(), {.stride = 7, .take_targets = take});
      expect_targets(seen, expected, run.parallel.tensor == 1);
      EXPECT_EQ(result.tokens, num_targets);
    }
  }
}

/// Short windows and targets that do not count leave the loss of the others as it is: with the largest
/// stride, the first windows are those of an evaluation without one.
TEST_F(StridedEvaluation, AgreesWithWholeWindows) {
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *world_, config(ranks(), 2));
  std::vector<TargetResult> whole;
  std::vector<TargetResult> strided;
  const auto results_of = [&](const EvalOptions& options) {
    return *evaluate(trainer.executor(), backend_, dataset(), trainer.grid(), options);
  };
  const EvalResult result =
      results_of({.take_targets = [&](auto part) { whole.insert(whole.end(), part.begin(), part.end()); }});
  const EvalResult plain = *evaluate(trainer.executor(), backend_, dataset(), trainer.grid(), {});
  EXPECT_EQ(result.loss, plain.loss);
  EXPECT_EQ(result.accuracy, plain.accuracy);
  results_of({.stride = seq_len,
              .take_targets = [&](auto part) { strided.insert(strided.end(), part.begin(), part.end()); }});
  ASSERT_EQ(std::ssize(whole), num_windows * seq_len);
  ASSERT_EQ(std::ssize(strided), num_windows * seq_len + seq_len / 2);
  strided.resize(whole.size());
  expect_targets(strided, whole, true);
}

TEST_F(StridedEvaluation, KnowsTheBytesOfKnownTokens) {
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *world_, config(ranks(), 1));
  const auto bytes_with = [&](const Tokenizer* tokenizer) {
    return evaluate(trainer.executor(), backend_, parts(), trainer.grid(),
                    {.stride = seq_len, .tokenizer = tokenizer})
        ->bytes;
  };
  const Lengths all(4);
  const Lengths few(3);  // token 4 is outside
  EXPECT_GT(bytes_with(&all).value_or(0), num_targets);
  EXPECT_EQ(bytes_with(&few), std::nullopt);
  EXPECT_EQ(bytes_with(nullptr), std::nullopt);
  EXPECT_EQ(bytes_with(world_->rank() == 0 ? &all : nullptr).has_value(), ranks() == 1);
  EXPECT_EQ((EvalResult{.loss = 1.0, .tokens = 2, .bytes = 0}.bits_per_byte()), std::nullopt);
}

/// Losses that are not finite pass through as they are, and are never correct.
TEST_F(StridedEvaluation, GathersLossesThatAreNotFinite) {
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *world_, config(ranks(), 1));
  trainer.set_weight("wte.weight", std::vector<float>(5 * 24, std::numeric_limits<float>::quiet_NaN()));
  std::int64_t count = 0;
  evaluate(trainer.executor(), backend_, parts(), trainer.grid(),
           {.stride = seq_len, .take_targets = [&](std::span<const TargetResult> results) {
              for (const TargetResult& result : results) {
                ASSERT_TRUE(std::isnan(result.loss));
                ASSERT_FALSE(result.is_correct);
                ASSERT_LT(result.token, 5);
                ++count;
              }
            }});
  EXPECT_EQ(count, num_targets);
}

}  // namespace
}  // namespace mylos
