// SPDX-License-Identifier: BSD-3-Clause
// With data and tensor parallelism, an evaluation reads each window once, including the last.
#include "app/evaluator.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

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

  /// The result of one window.
  struct Window {
    double loss = 0.0;  ///< sum
    std::int64_t correct = 0;
  };
  std::vector<Window> windows() {
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *self_, config(1, 1));
    const TokenDataset data = dataset();
    std::vector<Window> windows(num_windows);
    std::vector<std::int32_t> tokens(seq_len + 1);
    for (std::int64_t i = 0; i < num_windows; ++i) {
      data.sequential(i, tokens.data());
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
      const EvalResult seen = *evaluate(trainer.executor(), backend_, dataset(), most, trainer.grid());
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
    const EvalResult seen = *evaluate(trainer.executor(), backend_, dataset(), 0, trainer.grid());
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
  const EvalResult seen = *evaluate(trainer.executor(), backend_, dataset(), 1, trainer.grid());
  EXPECT_TRUE(std::isnan(seen.loss));
  EXPECT_EQ(seen.tokens, seq_len);
}

}  // namespace
}  // namespace mylos
