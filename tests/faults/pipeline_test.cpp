// SPDX-License-Identifier: BSD-3-Clause
// Runs with stages: restarts with other stages, what goes wrong on a stage, and how a model with stages is
// used.
#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

/// Five stages of blocks, some of which have none: 4 blocks, and 8 micro-batches per step.
class Pipeline : public RunTest {
 protected:
  /// A way to divide the model; the name says how.
  struct Stages {
    std::string name;
    int ranks = 1;
    Words words{};
    int micro_batch = 2;
  };
  static std::vector<Stages> all_stages() {
    return {{"1", 1, {}},
            {"2", 2, {"--parallel.pipeline=2"}},
            {"3", 3, {"--parallel.pipeline=3", "--parallel.schedule=gpipe"}},
            {"4", 4, {"--parallel.pipeline=4", "--parallel.stages=0,2,2,0"}},
            {"2 x 2 chunks",
             2,
             {"--parallel.pipeline=2", "--parallel.schedule=interleaved", "--parallel.chunks=2"}},
            {"2 in a V", 2, {"--parallel.pipeline=2", "--parallel.schedule=zero_bubble_v"}},
            {"2 stages of 2", 4, {"--parallel.pipeline=2", "--parallel.exchange=zero1"}, 1}};
  }

  Words arguments_of(const std::string& run, const Stages& stages, const Words& more) const {
    Words words = {"--model.layers=4", "--train.global_batch=16",
                   fmt::format("--train.micro_batch={}", stages.micro_batch), "--optim.clip_norm=0"};
    words.insert(words.end(), stages.words.begin(), stages.words.end());
    words.insert(words.end(), more.begin(), more.end());
    return train_arguments(run, words);
  }
  Outcome train_stages(const std::string& run, const Stages& stages, const Words& more,
                       const std::vector<std::string>& environment = {}) const {
    return run_mylos(arguments_of(run, stages, more), {.ranks = stages.ranks, .environment = environment});
  }

  void copy_run(const std::string& from, const std::string& to) const {
    fs::copy(run_path(from), run_path(to), fs::copy_options::recursive);
  }
};

/// The tensors of a checkpoint do not depend on the stages: whoever wrote it, every layout reads the same
/// bits, and goes on as if it had trained from the beginning.
TEST_F(Pipeline, ContinuesWithOtherStages) {
  for (const bool tied : {true, false}) {
    const std::string model = fmt::format("--model.tied={}", tied);
    std::vector<double> expected;  // losses
    for (const Stages& stages : all_stages()) {
      const std::string run = fmt::format("{}, tied {}", stages.name, tied);
      ASSERT_EQ(train_stages(run, stages, {model, "--train.stop_step=2"}).exit_code, 0) << run;
    }
    const std::vector<Stages> stages = all_stages();
    for (std::size_t i = 0; i < stages.size(); ++i) {
      // Each is continued by itself and by another.
      for (const std::size_t distance : {std::size_t{0}, std::size_t{tied ? 3U : 1U}}) {
        const Stages& next = stages[(i + distance) % stages.size()];
        SCOPED_TRACE(fmt::format("{} continued by {}, tied {}", stages[i].name, next.name, tied));
        const std::string from = fmt::format("{}, tied {}", stages[i].name, tied);
        const std::string run = fmt::format("{} by {}", from, next.name);
        copy_run(from, run);
        // With a learning rate of 0, the checkpoint of step 3 is that of step 2.
        const std::string still = run + ", still";
        copy_run(from, still);
        const Outcome loaded =
            train_stages(still, next, {model, "--train.stop_step=3", "--restart", "--optim.lr=0"});
        ASSERT_EQ(loaded.exit_code, 0) << loaded.output;
        const Snapshot before = snapshot(from, 2);
        const Snapshot after = snapshot(still, 3);
        for (const auto& [name, values] : before.tensors) {
          if (!name.starts_with("weights.h5")) continue;
          EXPECT_EQ(values, after.tensors.at(name)) << name;
        }
        const Outcome outcome = train_stages(run, next, {model, "--train.stop_step=4", "--restart"});
        ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
        EXPECT_THAT(outcome.output,
                    HasSubstr(distance == 0 ? "step_000002, bitwise\n" : "; not bitwise, because of: "));
        const std::vector<double> losses = steps_table(run)["loss"];
        ASSERT_EQ(losses.size(), 4U);
        if (expected.empty()) expected = losses;
        for (std::size_t step = 0; step < losses.size(); ++step)
          EXPECT_NEAR(losses[step] / expected[step], 1.0, 2e-5) << step + 1;
      }
    }
  }
}

/// A restart in the same layout gives the same run.
TEST_F(Pipeline, ContinuesBitwise) {
  for (const Stages& stages : all_stages()) {
    if (stages.ranks == 1) continue;
    SCOPED_TRACE(stages.name);
    const Words asynchronous = {"--checkpoint.async=true", "--model.dropout=0.1", "--train.dtype=bf16"};
    const std::string whole = stages.name + ", whole";
    Words half = asynchronous;
    half.emplace_back("--train.stop_step=4");
    ASSERT_EQ(train_stages(whole, stages, asynchronous).exit_code, 0);
    ASSERT_EQ(train_stages("run " + stages.name, stages, half).exit_code, 0);
    Words rest = asynchronous;
    rest.emplace_back("--restart");
    ASSERT_EQ(train_stages("run " + stages.name, stages, rest).exit_code, 0);
    expect_same_run("run " + stages.name, whole, 8);
  }
}

/// The way of the messages is of no account.
TEST_F(Pipeline, ComputesTheSameWithAnyCommunication) {
  const Stages stages = all_stages()[2];
  ASSERT_EQ(train_stages("whole", stages, {}).exit_code, 0);
  const Words ways[] = {{"--backend.comm=mpi"},
                        {"--comm.progress_thread=true"},
                        {"--comm.ranks_per_node=1"},
                        {"--comm.algorithm=ring", "--comm.simulate_gbps=10", "--comm.simulate_alpha=100"},
                        {"--backend.comm=mpi", "--comm.algorithm=ring", "--comm.progress_thread=true"}};
  for (const Words& way : ways) {
    SCOPED_TRACE(testing::PrintToString(way));
    const std::string run = fmt::format("run {}", &way - ways);
    const Outcome outcome = train_stages(run, stages, way);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    expect_same_checkpoint(snapshot(run, 8), snapshot("whole", 8));
    for (const char* column : {"loss", "gradient_norm"})
      EXPECT_EQ(steps_table(run)[column], steps_table("whole")[column]) << column;
  }
}

/// A traced step measures the units, and the next run places them by these times.
TEST_F(Pipeline, IsCutByAProfile) {
  const Stages stages = all_stages()[1];
  ASSERT_EQ(train_stages("run", stages, {"--profile.step=2", "--train.stop_step=2"}).exit_code, 0);
  const fs::path profile = run_path("run") / "units-2.csv";
  std::vector<std::string> lines;
  std::istringstream text(slurp(profile));
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("#")) lines.push_back(line);
  }
  ASSERT_EQ(lines.size(), 1U + 6U) << "names of columns; embedding, blocks and head";
  // All units but the first two blocks cost nothing: a stage each.
  std::string uneven;
  int number = 0;
  for (const std::string& line : lines) {
    const std::size_t name = line.find(',');
    const std::size_t times = line.find(',', line.find(',', line.find(',', name + 1) + 1) + 1);
    if (number++ == 0) {
      EXPECT_THAT(line, HasSubstr("unit,forward,input,weight,"));
      uneven += line + "\n";
      continue;
    }
    const bool is_costly = number == 3 || number == 4;
    uneven += line.substr(0, name) + (is_costly ? ",1,1,1" : ",1e-6,1e-6,1e-6") + line.substr(times) + "\n";
  }
  spill(scratch() / "uneven.csv", uneven);
  const auto planned = [&](const std::string& path) {
    const Outcome outcome =
        train_stages("planned", stages, {"--parallel.stages=profile:" + path, "--dry-run", "--layout"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  planned(profile.string());
  EXPECT_THAT(planned((scratch() / "uneven.csv").string()), HasSubstr("embedding, block 0, "));
}

/// Wherever a rank of whichever stage is killed, the job ends, and a restart gives the run that nothing
/// disturbed.
TEST_F(Pipeline, SurvivesKillsOnEachStage) {
  const Stages stages = all_stages()[2];
  ASSERT_EQ(train_stages("whole", stages, {}).exit_code, 0);
  // In the warm-up, the steady state and the drain; in messages, the update and a checkpoint.
  const char* places[] = {"forward@0",         "forward@2",       "backward@4", "backward@7",
                          "receive_forward@1", "send_backward@3", "reduce",     "step",
                          "checkpoint.write"};
  int number = 0;
  for (const char* place : places) {
    const int rank = number++ % stages.ranks;
    const bool is_on_stage = !(std::string_view(place) == "receive_forward@1" && rank == 0) &&
                             !(std::string_view(place) == "send_backward@3" && rank == 0);
    const std::string fault = fmt::format("{}:{}:6:kill", place, is_on_stage ? rank : 1);
    SCOPED_TRACE(fault);
    const std::string run = fmt::format("run {}", number);
    const Outcome outcome = train_stages(run, stages, {}, {"MYLOS_FAULT=" + fault});
    EXPECT_NE(outcome.exit_code, 0);
    expect_loads(run, 4);
    ASSERT_EQ(train_stages(run, stages, {"--restart"}).exit_code, 0);
    expect_same_run(run, "whole", 8);
  }
}

TEST_F(Pipeline, ReportsStageAndPassOfAStoppedRank) {
  const Stages stages = all_stages()[2];
  for (int rank = 0; rank < stages.ranks; ++rank) {
    SCOPED_TRACE(rank);
    const std::string run = fmt::format("run {}", rank);
    const Outcome outcome =
        run_until_silent(arguments_of(run, stages, {}), rank, fmt::format("backward@5:{}:3:stop", rank),
                         {.ranks = stages.ranks});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::watchdog)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("stopped rank {}: pid", rank)));
    EXPECT_THAT(outcome.output,
                HasSubstr(fmt::format("step 3, stage {}, backward of micro-batch 5, chunk {}", rank, rank)));
    // Another stage waits for it; nothing waits for the first stage, when micro-batches come back to it.
    if (rank > 0) {
      EXPECT_THAT(outcome.output, HasSubstr(fmt::format("from stage {}] ", rank)));
    }
    expect_loads(run, 2);
  }
}

/// A stage that waits for a message that never comes is reported after comm.timeout, with what it waits for.
TEST_F(Pipeline, ReportsAStalledMessage) {
  const Stages stages = all_stages()[1];
  const Outcome outcome =
      run_on_clock(arguments_of("run", stages, {"--comm.timeout=8"}),
                   {.ranks = stages.ranks, .environment = {"MYLOS_FAULT=forward@3:0:3:mismatch"}},
                   [&](const Job& /*job*/) { return num_rows("run") >= 1; });
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::watchdog)) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("activations of micro-batch 3 from stage 0"));
}

/// A bad value on any stage is the same decision on all.
TEST_F(Pipeline, SkipsAStepForABadGradientOfAnyStage) {
  const Stages stages = all_stages()[2];
  for (int rank = 0; rank < stages.ranks; ++rank) {
    const std::string run = fmt::format("run {}", rank);
    const Outcome outcome = train_stages(run, stages, {"--train.stop_step=4"},
                                         {fmt::format("MYLOS_FAULT=reduce:{}:3:nan", rank)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("step 3: update not applied"));
    EXPECT_THAT(steps_table(run)["skipped"], testing::ElementsAre(0, 0, 1, 0));
  }
}

/// A model is evaluated and continued on stages as without.
TEST_F(Pipeline, IsUsedOnStages) {
  const Stages stages = all_stages()[1];
  ASSERT_EQ(train_stages("run", stages, {}).exit_code, 0);
  const std::string data = "--data=" + tokens().string();
  const auto result = [&](Words words, int ranks, const Words& more) {
    words.insert(words.begin() + 1, run_path("run").string());
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_mylos(words, {.ranks = ranks});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  const Words generate = {"generate", "--prompt=the quick", "--tokens=6", "--samples=3", "--temperature=0.8"};
  const std::string evaluated = result({"eval", data}, 1, {});
  const std::string generated = result(generate, 1, {});
  const std::pair<int, Words> layouts[] = {
      {2, {"--parallel.pipeline=2"}},
      {3, {"--parallel.pipeline=3", "--parallel.stages=0,4,0"}},
      {4, {"--parallel.pipeline=2"}},
      {4, {"--parallel.pipeline=2", "--parallel.tensor=2", "--parallel.vocab=true"}}};
  for (const auto& [ranks, more] : layouts) {
    EXPECT_EQ(result({"eval", data}, ranks, more), evaluated);
    EXPECT_EQ(result(generate, ranks, more), generated);
  }
}

}  // namespace
}  // namespace mylos::test
