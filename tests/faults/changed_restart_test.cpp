// SPDX-License-Identifier: BSD-3-Clause
// Restarts that change what a deck may change: which samples are read, in which order, the totals, and what
// is said, against this file's own account. The learning rate is so small that no weight changes, so the loss
// of a step tells which windows it read: `mylos eval` gives the loss of the same windows.
#include <cstdlib>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "io/tokens/token_dataset.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

/// What one launch of a run does, from the step after the last one of the launch before.
struct Launch {
  std::int64_t last = 0;  ///< its last step
  std::int64_t batch = 4;
  std::int64_t seq_len = 16;
  std::int64_t seed = 1;
  std::string data = "first.bin";
  double lr = 1e-30;
  std::int64_t steps = 12;
  int ranks = 1;
  RunTest::Words more = {};
  /// What the launch says about the changes: the whole list, and the keys that it warns of.
  std::string changes = {};
  std::vector<std::string> warned = {};
};

class ChangedRestart : public RunTest {
 protected:
  static constexpr std::int64_t warmup = 2;

  ChangedRestart() {
    std::mt19937 random(1);
    for (const auto& [name, count] : {std::pair{"first.bin", 1000}, std::pair{"second.bin", 700}}) {
      std::vector<std::uint16_t> ids(static_cast<std::size_t>(count));
      for (std::uint16_t& id : ids) id = static_cast<std::uint16_t>(random() % 256);
      TokenFileWriter writer(scratch() / name);
      writer.append(ids);
      writer.finish();
    }
  }

  Outcome run(const Launch& launch, bool restarts) const {
    Words words = {fmt::format("--train.global_batch={}", launch.batch),
                   fmt::format("--train.seq_len={}", launch.seq_len),
                   fmt::format("--train.seed={}", launch.seed),
                   fmt::format("--data.train={}", (scratch() / launch.data).string()),
                   fmt::format("--optim.lr={}", launch.lr),
                   fmt::format("--optim.warmup={}", warmup),
                   fmt::format("--train.steps={}", launch.steps),
                   fmt::format("--train.stop_step={}", launch.last),
                   "--optim.schedule=linear",
                   "--backend.comm=mpi"};
    words.insert(words.end(), launch.more.begin(), launch.more.end());
    if (restarts) words.emplace_back("--restart");
    return train("run", words, {.ranks = launch.ranks});
  }

  /// The mean loss of samples [first, first + batch) in the order of `launch`, according to `mylos eval`.
  double loss_of(const Launch& launch, std::int64_t first) {
    TokenDataset::Source source;
    source.files.emplace_back(scratch() / launch.data, 257);
    std::vector<TokenDataset::Source> sources;
    sources.push_back(std::move(source));
    const TokenDataset dataset(std::move(sources), std::nullopt, launch.seq_len,
                               static_cast<std::uint64_t>(launch.seed));
    std::string files;
    for (std::int64_t i = first; i < first + launch.batch; ++i) {
      std::vector<std::int32_t> wide(static_cast<std::size_t>(launch.seq_len + 1));
      dataset.sample(i, wide.data());
      const fs::path file = scratch() / fmt::format("window_{}.bin", i - first);
      TokenFileWriter writer(file);
      writer.append(std::vector<std::uint16_t>(wide.begin(), wide.end()));
      writer.finish();
      files += fmt::format("{}{}", files.empty() ? "" : ",", file.string());
    }
    const Outcome outcome = run_mylos({"eval", run_path("run").string(), "--data=" + files}, {.ranks = 1});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("({} tokens of", launch.batch * launch.seq_len)));
    return std::atof(outcome.output.c_str() + outcome.output.find("loss ") + 5);
  }

  /// The learning rate of a step: a linear rise to the peak, then a linear fall to zero at the last step.
  static double lr_of(const Launch& launch, std::int64_t step) {
    const auto part = [](std::int64_t a, std::int64_t b) {
      return static_cast<double>(a) / static_cast<double>(b);
    };
    return step <= warmup ? launch.lr * part(step, warmup)
                          : launch.lr * part(launch.steps - step, launch.steps - warmup);
  }

  /// Runs the launches one after the other in one directory and compares with the account.
  void expect_accounted(const std::vector<Launch>& launches) {
    std::int64_t step = 0;
    std::int64_t sample = 0;
    std::int64_t tokens = 0;
    double epochs = 0.0;
    std::vector<double> expected_launches;
    for (std::size_t n = 0; n < launches.size(); ++n) {
      const Launch& launch = launches[n];
      SCOPED_TRACE(fmt::format("launch {}", n + 1));
      const Outcome outcome = run(launch, n > 0);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
      if (n > 0) {
        EXPECT_THAT(outcome.output,
                    HasSubstr(launch.changes.empty()
                                  ? ", bitwise\n"
                                  : fmt::format("; not bitwise, because of: {}\n", launch.changes)));
        EXPECT_EQ(occurrences(outcome.output, " has changed: the samples of this run will not continue"),
                  std::ssize(launch.warned))
            << outcome.output;
        for (const std::string& key : launch.warned)
          EXPECT_THAT(outcome.output, HasSubstr(key + " has changed: the samples"));
      }
      expected_launches.push_back(static_cast<double>(step));
      MetricsTable table = steps_table("run");
      ASSERT_EQ(std::ssize(table["step"]), launch.last);
      for (++step; step <= launch.last; ++step) {
        SCOPED_TRACE(fmt::format("step {}", step));
        const auto at = [&](const char* column) {
          return table.at(column).at(static_cast<std::size_t>(step - 1));
        };
        EXPECT_EQ(at("step"), static_cast<double>(step));
        EXPECT_NEAR(at("loss"), loss_of(launch, sample), 6e-5);
        sample += launch.batch;
        tokens += launch.batch * launch.seq_len;
        EXPECT_EQ(at("tokens"), static_cast<double>(tokens));
        const std::int64_t windows = (1000 - launch.seq_len) / launch.seq_len;  // of 1000 tokens
        epochs += static_cast<double>(launch.batch) / static_cast<double>(windows);
        EXPECT_NEAR(at("epochs_1"), epochs, 1e-9);
        EXPECT_NEAR(at("learning_rate") / launch.lr, lr_of(launch, step) / launch.lr, 1e-6);
      }
      step = launch.last;
      EXPECT_EQ(read_table("run", "launches")["step"], expected_launches);
      const auto state = nlohmann::json::parse(slurp(checkpoint_path("run", step) / "state.json"));
      EXPECT_EQ(state.at("sample"), sample);
    }
  }
};

TEST_F(ChangedRestart, OfNothingContinues) {
  expect_accounted({{.last = 2}, {.last = 4}});
}

TEST_F(ChangedRestart, OfTheBatchReadsTheNextSamples) {
  expect_accounted({{.last = 2},
                    {.last = 4, .batch = 6, .changes = "train.global_batch 4 -> 6, train.micro_batch 4 -> 6"},
                    {.last = 5,
                     .batch = 2,
                     .more = {"--train.micro_batch=1"},
                     .changes = "train.global_batch 6 -> 2, train.micro_batch 6 -> 1"}});
}

TEST_F(ChangedRestart, OfTheRanksReadsTheNextSamples) {
  expect_accounted({{.last = 2},
                    {.last = 4,
                     .ranks = 2,
                     .changes = "train.micro_batch 4 -> 2, parallel.data 1 -> 2, ranks per node 1 -> 2"}});
}

TEST_F(ChangedRestart, OfTheLengthCountsTheTokensOfBoth) {
  expect_accounted(
      {{.last = 2},
       {.last = 4, .seq_len = 8, .changes = "train.seq_len 16 -> 8", .warned = {"train.seq_len"}},
       {.last = 5,
        .batch = 2,
        .seq_len = 12,
        .changes = "train.global_batch 4 -> 2, train.micro_batch 4 -> 2, train.seq_len 8 -> 12",
        .warned = {"train.seq_len"}}});
}

TEST_F(ChangedRestart, OfTheSeedReadsAnotherOrder) {
  expect_accounted(
      {{.last = 2}, {.last = 4, .seed = 9, .changes = "train.seed 1 -> 9", .warned = {"train.seed"}}});
}

TEST_F(ChangedRestart, OfTheLearningRateAndTheStepsFollowsTheNewSchedule) {
  expect_accounted(
      {{.last = 2},
       {.last = 4, .steps = 20, .changes = "train.steps 12 -> 20"},
       {.last = 5, .lr = 2e-30, .steps = 6, .changes = "train.steps 20 -> 6, optim.lr 1e-30 -> 2e-30"}});
}

/// The validation data are the other file; neither the samples nor the numbers depend on evaluations.
TEST_F(ChangedRestart, OfEvaluationsIsBitwise) {
  const std::string valid = fmt::format("--data.valid={}", (scratch() / "second.bin").string());
  expect_accounted({{.last = 2},
                    {.last = 4, .more = {valid, "--eval.every=1", "--eval.batches=3"}},
                    {.last = 6, .more = {valid, "--eval.every=3"}}});
  MetricsTable evaluations = read_table("run", "eval");
  EXPECT_THAT(evaluations["step"], testing::ElementsAre(3, 4, 6));
  // Three batches of four windows; all 43 windows of 700 tokens.
  EXPECT_THAT(evaluations["tokens"], testing::ElementsAre(192, 192, 43 * 16));
}

/// The running index goes on in the new file.
TEST_F(ChangedRestart, OfTheDataIsSaid) {
  ASSERT_EQ(run({.last = 2}, false).exit_code, 0);
  const Launch other = {.last = 4, .data = "second.bin"};
  const Outcome outcome = run(other, true);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("not bitwise, because of: content of data.train "));
  EXPECT_EQ(occurrences(outcome.output, "content of data.train has changed: the samples"), 1);
  MetricsTable table = steps_table("run");
  EXPECT_EQ(table["tokens"].back(), 4.0 * 4 * 16);
  for (const std::int64_t step : {3, 4})
    EXPECT_NEAR(table["loss"][static_cast<std::size_t>(step - 1)], loss_of(other, 4 * (step - 1)), 6e-5);
}

/// The checkpoint's step is the last one in which the two runs are the same.
TEST_F(ChangedRestart, FromAnEarlierStepReadsTheSamplesAfterThatStep) {
  const Words often = {"--checkpoint.every=1", "--checkpoint.keep=9"};
  ASSERT_EQ(run({.last = 5, .more = often}, false).exit_code, 0);
  const std::vector<double> before = steps_table("run")["loss"];
  Words from_2 = often;
  from_2.emplace_back("--restart=step_2");
  ASSERT_EQ(run({.last = 4, .batch = 2, .more = from_2}, false).exit_code, 0);
  MetricsTable table = steps_table("run");
  const Launch halved = {.batch = 2};
  ASSERT_EQ(table["loss"].size(), 4U);
  EXPECT_EQ(table["loss"][1], before[1]);
  EXPECT_NEAR(table["loss"][2], loss_of(halved, 8), 6e-5);
  EXPECT_NEAR(table["loss"][3], loss_of(halved, 10), 6e-5);
  EXPECT_THAT(table["tokens"], testing::ElementsAre(64, 128, 160, 192));
  // 61 windows of 16 tokens in 1000.
  EXPECT_DOUBLE_EQ(table["epochs_1"][3], 12.0 / 61.0);
}

}  // namespace
}  // namespace mylos::test
