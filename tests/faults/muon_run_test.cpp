// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints of Muon: what they hold, any layout continues any other, and another optimizer does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

struct MuonLayout {
  int ranks;
  RunTest::Words words;
};

class MuonRun : public RunTest {
 protected:
  const Words muon = {"--optim.name=muon", "--optim.lr=5e-3", "--optim.warmup=0", "--train.steps=40",
                      "--optim.schedule=constant"};

  Outcome launch(const MuonLayout& layout, std::int64_t last, const Words& more = {},
                 const char* fault = "") {
    Words words = muon;
    words.insert(words.end(), layout.words.begin(), layout.words.end());
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {fmt::format("--train.stop_step={}", last), "--restart"});
    return train("run", words, {.ranks = layout.ranks, .environment = {std::string("MYLOS_FAULT=") + fault}});
  }

  /// Each layout continues the one before, twice: once with a step that is skipped, after which the
  /// checkpoint must be the same, then with one that is made.
  void expect_to_continue(const std::vector<MuonLayout>& layouts, const Words& more = {}) {
    std::int64_t step = 0;
    for (const MuonLayout& layout : layouts) {
      SCOPED_TRACE(fmt::format("{} ranks {}", layout.ranks, testing::PrintToString(layout.words)));
      if (step > 0) {
        const Snapshot before = snapshot("run", step);
        const Outcome skipped =
            launch(layout, step + 1, more, fmt::format("reduce:0:{}:nan", step + 1).c_str());
        ASSERT_EQ(skipped.exit_code, 0) << skipped.output;
        EXPECT_THAT(skipped.output, HasSubstr("update not applied"));
        const Snapshot after = snapshot("run", ++step);
        EXPECT_TRUE(after.tensors == before.tensors);
      }
      const Snapshot before = step > 0 ? snapshot("run", step) : Snapshot();
      const Outcome made = launch(layout, ++step, more);
      ASSERT_EQ(made.exit_code, 0) << made.output;
      EXPECT_FALSE(snapshot("run", step).tensors == before.tensors);
    }
  }
};

TEST_F(MuonRun, AnyLayoutContinuesAnyOther) {
  expect_to_continue({{1, {}},
                      {2, {"--parallel.exchange=zero3"}},
                      {2, {"--parallel.tensor=2", "--parallel.vocab=true"}},
                      {4, {"--parallel.tensor=2", "--parallel.exchange=zero1", "--parallel.sequence=true"}},
                      {3, {"--parallel.exchange=zero2"}},
                      {2, {"--parallel.pipeline=2", "--train.micro_batch=3"}},
                      {4, {"--parallel.exchange=zero3", "--parallel.shard=2"}},
                      {4, {"--parallel.pipeline=2", "--parallel.exchange=zero1", "--train.micro_batch=3"}},
                      {2, {}},
                      {1, {"--checkpoint.async=true"}}});
}

TEST_F(MuonRun, AnyLayoutOfExpertsContinuesAnyOther) {
  expect_to_continue({{1, {}},
                      {2, {"--parallel.expert=2"}},
                      {4, {"--parallel.expert=2", "--parallel.tensor=2"}},
                      {4, {"--parallel.expert=2", "--parallel.exchange=zero1"}},
                      {2, {"--parallel.tensor=2"}}},
                     {"--model.experts=4"});
}

/// Stages that do not wait: with the versions of weights, an interrupted run ends as one that was not.
TEST_F(MuonRun, TheVersionsOfPipedreamContinue) {
  const MuonLayout pipedream{2,
                             {"--parallel.pipeline=2", "--parallel.schedule=pipedream",
                              "--train.micro_batch=3", "--model.tied=false", "--optim.clip_norm=0"}};
  ASSERT_EQ(launch(pipedream, 6).exit_code, 0);
  const Snapshot whole = snapshot("run", 6);
  fs::remove_all(run_path("run"));
  for (const std::int64_t last : {2, 3, 6}) ASSERT_EQ(launch(pipedream, last).exit_code, 0);
  EXPECT_TRUE(snapshot("run", 6).tensors == whole.tensors);
}

TEST_F(MuonRun, KeepsOneStateOfMatricesAndTwoOfTheRest) {
  ASSERT_EQ(launch({1, {}}, 2).exit_code, 0);
  const Snapshot found = snapshot("run", 2);
  EXPECT_TRUE(found.tensors.contains("optimizer.h5:momentum/h.0.attn.c_attn.weight"));
  EXPECT_FALSE(found.tensors.contains("optimizer.h5:first_moment/h.0.attn.c_attn.weight"));
  EXPECT_FALSE(found.tensors.contains("optimizer.h5:momentum/wte.weight"));
  for (const char* name : {"wte.weight", "wpe.weight", "h.1.mlp.c_fc.bias", "ln_f.weight"}) {
    for (const char* state : {"first_moment", "second_moment"})
      EXPECT_TRUE(found.tensors.contains(fmt::format("optimizer.h5:{}/{}", state, name))) << state << name;
  }
}

TEST_F(MuonRun, ContinuesNoOtherOptimizer) {
  ASSERT_EQ(launch({1, {}}, 2).exit_code, 0);
  const Outcome other = train("run", {"--restart"}, {.ranks = 1});
  EXPECT_EQ(other.exit_code, static_cast<int>(ExitCode::usage));
  EXPECT_THAT(other.output, HasSubstr("optim.name muon -> adamw"));
}

TEST_F(MuonRun, AnOwnRateNeedsAScheduleToFollow) {
  const Outcome outcome =
      train("bad", {"--optim.name=muon", "--optim.lr=0", "--optim.min_lr=0", "--optim.muon_lr=1e-3"});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage));
  EXPECT_THAT(outcome.output, HasSubstr("muon_lr = 0.001 follows the schedule of lr"));
}

}  // namespace
}  // namespace mylos::test
