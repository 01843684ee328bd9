// SPDX-License-Identifier: BSD-3-Clause
// NaN and infinity meet every comparison of a whole job that decides an exit code.
#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::Each;
using testing::HasSubstr;

class NotFinite : public RunTest {
 protected:
  /// Options of a run that diverges within a step: its weights stay finite, its losses do not.
  Words diverging(const Words& more = {}) const {
    Words words = {"--train.dtype=fp16",         "--optim.name=sgd",   "--optim.lr=1000",
                   "--optim.schedule=constant",  "--optim.warmup=0",   "--optim.clip_norm=0",
                   "--train.loss_scale=1",       "--optim.momentum=0", "--data.valid=" + tokens().string(),
                   "--train.loss_scale_window=0"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  int code_of_eval(const std::string& run, const std::string& max_loss, int ranks = 1) const {
    return run_mylos({"eval", run_path(run).string(), "--max-loss=" + max_loss}, {.ranks = ranks}).exit_code;
  }
};

/// `eval` has no loss that is small enough, on any number of ranks.
TEST_F(NotFinite, LossesPassNoLimit) {
  const Outcome outcome = train("run", diverging({"--guard.max_skips=100"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  ASSERT_FALSE(std::isfinite(steps_table("run")["loss"].back())) << outcome.output;
  EXPECT_FALSE(std::isfinite(read_table("run", "eval")["loss"].back()));
  for (const int ranks : {1, 2})
    EXPECT_EQ(code_of_eval("run", "1e30", ranks), static_cast<int>(ExitCode::numerical));
  EXPECT_EQ(run_mylos({"report", run_path("run").string()}, {.ranks = 1}).exit_code, 0);
  const std::string report = slurp(run_path("run") / "report.html");
  EXPECT_THAT(report, HasSubstr(">done<"));
}

/// They count as skipped steps, also for a policy that stops and for a spike limit.
TEST_F(NotFinite, StepsAreBad) {
  const Outcome skipping = train("skipping", diverging({"--guard.max_skips=3"}));
  EXPECT_EQ(skipping.exit_code, static_cast<int>(ExitCode::numerical)) << skipping.output;
  EXPECT_THAT(expect_status("skipping", "failed", ExitCode::numerical), HasSubstr("(3 in a row)"));
  const std::vector<double> skipped = steps_table("skipping")["skipped"];
  ASSERT_GE(skipped.size(), 3U);
  EXPECT_THAT(std::vector<double>(skipped.end() - 3, skipped.end()), Each(1.0));
  const Outcome stopping = train("stopping", diverging({"--guard.policy=stop"}));
  EXPECT_EQ(stopping.exit_code, static_cast<int>(ExitCode::numerical)) << stopping.output;
  expect_status("stopping", "failed", ExitCode::numerical);
  EXPECT_FALSE(fs::exists(
      checkpoint_path("stopping", static_cast<std::int64_t>(steps_table("stopping")["step"].back()))));
}

/// A NaN in the gradient of one rank, at each action at which it can enter, skips the step on all ranks and
/// leaves the statistics of spikes alone: the step after it is judged as if it had not been.
TEST_F(NotFinite, GradientsOfOneRankAreSeenByAll) {
  const Words spikes = {"--guard.spike_factor=8", "--guard.spike_window=3"};
  for (const char* action : {"backward", "reduce"}) {
    for (const int rank : {0, 1}) {
      const std::string run = fmt::format("{}{}", action, rank);
      const Outcome outcome = train_with_fault(run, fmt::format("{}:{}:5:nan", action, rank), spikes);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
      EXPECT_EQ(steps_table(run)["skipped"], (std::vector<double>{0, 0, 0, 0, 1, 0, 0, 0})) << run;
      EXPECT_FALSE(std::isfinite(steps_table(run)["gradient_norm"][4]));
    }
  }
}

}  // namespace
}  // namespace mylos::test
