// SPDX-License-Identifier: BSD-3-Clause
// A step that was not applied is not saved: its checkpoint is put off to the next step that is applied.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SkippedStep : public RunTest {
 protected:
  /// Trains 8 steps, of which the fourth is skipped; expects its checkpoint after the fifth.
  void expect_put_off(const std::string& run, const Words& more) {
    Words words = {"--checkpoint.keep=9"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = train_with_fault(run, "reduce:1:4:nan", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(steps_table(run)["skipped"], ElementsAre(0, 0, 0, 1, 0, 0, 0, 0));
    EXPECT_THAT(checkpoint_steps(run), ElementsAre(2, 5, 6, 8));
    EXPECT_THAT(read_table(run, "checkpoints")["step"], ElementsAre(2, 5, 6, 8));
  }
};

TEST_F(SkippedStep, PutsItsCheckpointOffToTheNextStep) {
  expect_put_off("run", {});
  expect_put_off("async", {"--checkpoint.async=true"});
  expect_same_checkpoint(snapshot("async", 5), snapshot("run", 5));
}

TEST_F(SkippedStep, EndsTheRunWithoutACheckpointAfterOneTooMany) {
  const Outcome outcome =
      train_with_fault("run", "backward:0:4:nan", {"--guard.max_skips=1", "--checkpoint.keep=9"});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::numerical)) << outcome.output;
  EXPECT_THAT(expect_status("run", "failed", ExitCode::numerical), HasSubstr("not applied (1 in a row)"));
  EXPECT_THAT(checkpoint_steps("run"), ElementsAre(2));
  EXPECT_EQ(status_step("run"), 4);
}

}  // namespace
}  // namespace mylos::test
