// SPDX-License-Identifier: BSD-3-Clause
// Totals of whole jobs: what a run has read, over restarts that change how much a step reads, and what a
// model that has diverged may pass.

#include <gtest/gtest.h>

#include "io/tokens/token_dataset.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using Totals = RunTest;

TEST_F(Totals, AddWhatEachLaunchRead) {
  struct Launch {
    std::int64_t last_step, global_batch, seq_len;
    int ranks;
  };
  double tokens_read = 0.0;
  double epochs = 0.0;
  std::int64_t samples = 0;
  std::int64_t step = 0;
  for (const Launch& launch :
       {Launch{4, 12, 16, 2}, Launch{6, 8, 16, 1}, Launch{8, 8, 8, 2}, Launch{10, 4, 16, 1}}) {
    SCOPED_TRACE(launch.last_step);
    std::vector<std::string> words = {"--train.steps=100",
                                      fmt::format("--train.stop_step={}", launch.last_step),
                                      fmt::format("--train.global_batch={}", launch.global_batch),
                                      fmt::format("--train.seq_len={}", launch.seq_len)};
    if (step > 0) words.emplace_back("--restart");
    const Outcome outcome = train("run", words, {.ranks = launch.ranks});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    MetricsTable steps = steps_table("run");
    const TokenDataset data =
        open_dataset(parse_sources(tokens().string()), TokenFile::most_ids, launch.seq_len, 1);
    while (step < launch.last_step) {
      const auto row = static_cast<std::size_t>(step++);
      tokens_read += static_cast<double>(launch.global_batch * launch.seq_len);
      epochs += data.epochs(0, samples + launch.global_batch) - data.epochs(0, samples);
      samples += launch.global_batch;
      EXPECT_EQ(steps["tokens"][row], tokens_read);
      EXPECT_NEAR(steps["epochs_1"][row], epochs, 1e-12);
    }
  }
}

/// The report shows the newest step of this history, not the highest of one that was given up.
TEST_F(Totals, ARestartSetsTheTracesOfLaterStepsAside) {
  ASSERT_EQ(train("run", {"--profile.step=6", "--checkpoint.keep=9"}).exit_code, 0);
  ASSERT_EQ(train("run", {"--profile.step=4", "--checkpoint.keep=9", "--restart=step_2"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(run_path("run") / "trace-6.json"));
  EXPECT_TRUE(fs::exists(run_path("run") / "trace-6.json.abandoned"));
  EXPECT_NE(slurp(run_path("run") / "report.html").find("step 4 of rank 0:"), std::string::npos);
}

/// A loss of 10¹⁴ once came out as a negative number and passed every gate.
TEST_F(Totals, ADivergedModelPassesNoGate) {
  const Outcome trained = train(
      "run", {"--data.valid=" + tokens().string(), "--optim.lr=1000", "--optim.warmup=0",
              "--optim.clip_norm=0", "--train.steps=12", "--checkpoint.every=0", "--guard.max_skips=1000"});
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  MetricsTable found = read_table("run", "eval");
  ASSERT_EQ(found["loss"].size(), 1U);
  ASSERT_FALSE(found["loss"][0] < 1e9) << "the model is to diverge";
  for (const int ranks : {1, 2}) {
    for (const char* most : {"10", "1e9"}) {
      const Outcome outcome =
          run_mylos({"eval", run_path("run").string(), fmt::format("--max-loss={}", most)}, {.ranks = ranks});
      EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::numerical)) << outcome.output;
    }
  }
}

}  // namespace
}  // namespace mylos::test
