// SPDX-License-Identifier: BSD-3-Clause
// Runs whose stages do not wait for each other: drains, restarts, and what goes wrong on a stage.
#include <algorithm>
#include <map>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/join.hpp"
#include "tests/faults/run_fixture.hpp"
#include "tests/support/seed.hpp"

namespace mylos::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class PipeDream : public RunTest {
 protected:
  static constexpr int stages = 3;

  /// The rules of the versions: stashing, vertical sync, 2BW.
  static std::map<std::string, Words> rules() {
    return {{"stashing", {"--parallel.schedule=pipedream"}},
            {"vertical", {"--parallel.schedule=pipedream", "--parallel.vertical_sync=true"}},
            {"2bw", {"--parallel.schedule=pipedream_2bw"}}};
  }
  static Words joined(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// `step` micro-batches per step.
  Words arguments_of(const std::string& run, const Words& more, int step = 2,
                     bool is_emulated = false) const {
    Words words = more;
    const auto add = [&](const std::string& key, const std::string& value) {
      const auto is_same = [&](const std::string& word) { return word.starts_with(key + "="); };
      if (std::ranges::none_of(more, is_same)) words.push_back(key + "=" + value);
    };
    add("--model.layers", "4");
    add("--model.tied", "false");
    add("--model.dropout", "0.1");
    add("--train.micro_batch", "2");
    add("--train.global_batch", std::to_string(2 * step));
    add("--optim.clip_scope", "stage");
    add("--data.valid", tokens().string());
    add("--eval.batches", "2");
    add(is_emulated ? "--parallel.emulated_stages" : "--parallel.pipeline", std::to_string(stages));
    return train_arguments(run, words);
  }
  Outcome train_stages(const std::string& run, const Words& more, int step = 2,
                       const std::vector<std::string>& environment = {}, bool is_emulated = false) const {
    return run_mylos(arguments_of(run, more, step, is_emulated),
                     {.ranks = is_emulated ? 1 : stages, .environment = environment});
  }
};

/// Evaluations, checkpoints, comparisons of replicas and a stop drain the pipeline, and change nothing.
TEST_F(PipeDream, DrainsChangeNothing) {
  std::mt19937 random(seed_of_tests());
  const auto drawn = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  constexpr int steps = 30;
  const std::string length = fmt::format("--train.steps={}", steps);
  for (const auto& [name, words] : rules()) {
    for (const int step : {1, 2, 3}) {
      if (name == "2bw" && step < stages - 1) continue;
      const Words still = joined(words, {length, "--eval.every=0", "--checkpoint.every=0"});
      const std::string whole = fmt::format("{} {}, whole", name, step);
      ASSERT_EQ(train_stages(whole, still, step).exit_code, 0);
      const std::string run = fmt::format("{} {}", name, step);
      const Words busy = joined(words, {length, fmt::format("--eval.every={}", drawn(2, 7)),
                                        fmt::format("--checkpoint.every={}", drawn(2, 9)),
                                        fmt::format("--guard.replica_check_every={}", drawn(2, 9)),
                                        fmt::format("--checkpoint.async={}", drawn(0, 1) == 1)});
      const int stop = drawn(3, 20);
      SCOPED_TRACE(fmt::format("{}, stop {}, {}", run, stop, testing::PrintToString(busy)));
      ASSERT_EQ(train_stages(run, joined(busy, {fmt::format("--train.stop_step={}", stop)}), step).exit_code,
                0);
      const Outcome rest = train_stages(run, joined(busy, {"--restart"}), step);
      ASSERT_EQ(rest.exit_code, 0) << rest.output;
      EXPECT_THAT(rest.output, HasSubstr(", bitwise\n"));
      expect_same_checkpoint(snapshot(run, steps), snapshot(whole, steps));
      for (const char* column : {"loss", "gradient_norm", "skipped"})
        EXPECT_EQ(steps_table(run)[column], steps_table(whole)[column]) << column;
      expect_every_step_once(run, steps);
    }
  }
}

/// With so many rows, kernels keep packed copies of weights, of each version.
TEST_F(PipeDream, ContinuesBitwiseWithPackedWeights) {
  const Words words = joined(rules().at("stashing"), {"--train.micro_batch=32", "--train.global_batch=64",
                                                      "--model.width=64", "--checkpoint.every=0"});
  ASSERT_EQ(train_stages("whole", words).exit_code, 0);
  ASSERT_EQ(train_stages("run", joined(words, {"--train.stop_step=3"})).exit_code, 0);
  ASSERT_EQ(train_stages("run", joined(words, {"--restart"})).exit_code, 0);
  expect_same_checkpoint(snapshot("run", 8), snapshot("whole", 8));
}

/// Collectives of several rounds go on while a stage waits for a message; unequal replicas as well.
TEST_F(PipeDream, ComputesTheSameWithAnyCommunication) {
  const Words words = joined(rules().at("stashing"), {"--train.global_batch=2"});
  ASSERT_EQ(train_stages("whole", words).exit_code, 0);
  const Words ways[] = {{"--backend.comm=mpi"},
                        {"--comm.ranks_per_node=1"},
                        {"--comm.algorithm=ring", "--comm.simulate_gbps=1", "--comm.simulate_alpha=20000"},
                        {"--backend.comm=mpi", "--comm.algorithm=ring"}};
  for (const Words& way : ways) {
    SCOPED_TRACE(testing::PrintToString(way));
    const std::string run = fmt::format("run {}", &way - ways);
    const Outcome outcome = train_stages(run, joined(words, joined(way, {"--comm.timeout=60"})));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    expect_same_checkpoint(snapshot(run, 8), snapshot("whole", 8));
  }
}

/// Stages with unequal numbers of ranks: evaluation, restarts, and other layouts from there and back.
TEST_F(PipeDream, TrainsWithUnequalReplicas) {
  const auto run_replicas = [&](const std::string& run, const Words& more) {
    const Words words = joined({"--parallel.schedule=pipedream", "--parallel.pipeline=2",
                                "--parallel.replicas=2,1", "--train.global_batch=8", "--eval.every=3"},
                               more);
    return train_stages(run, words, 2);
  };
  ASSERT_EQ(run_replicas("whole", {}).exit_code, 0);
  const Outcome half = run_replicas("run", {"--train.stop_step=4", "--guard.replica_check_every=1"});
  ASSERT_EQ(half.exit_code, 0) << half.output;
  fs::copy(run_path("run"), run_path("other"), fs::copy_options::recursive);
  const Outcome rest = run_replicas("run", {"--restart"});
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr(", bitwise\n"));
  expect_same_checkpoint(snapshot("run", 8), snapshot("whole", 8));
  EXPECT_EQ(steps_table("run")["loss"], steps_table("whole")["loss"]);
  // Three stages of one rank each go on from there, and their checkpoint from here.
  ASSERT_EQ(train_stages("other", {"--parallel.schedule=1f1b", "--optim.clip_scope=model", "--restart",
                                   "--train.global_batch=8", "--train.stop_step=6"})
                .exit_code,
            0);
  const Outcome back = run_replicas("other", {"--restart"});
  EXPECT_EQ(back.exit_code, 0) << back.output;
  const Outcome evaluated =
      run_mylos({"eval", run_path("other").string(), "--data=" + tokens().string()}, {});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.output;
  // Several ranks with the head: only the first has the results of an evaluation.
  spill(scratch() / "choices.jsonl",
        "{\"ind\": 0, \"ctx\": \"the quick\", \"label\": 1, \"endings\": [\"a\", \"b\", \"c\", \"d\"]}\n");
  const Outcome two_heads = train_stages(
      "two heads", {"--parallel.schedule=pipedream", "--parallel.pipeline=2", "--parallel.replicas=1,2",
                    "--train.global_batch=8", "--train.micro_batch=0", "--eval.every=4",
                    "--eval.choices=" + (scratch() / "choices.jsonl").string()});
  EXPECT_EQ(two_heads.exit_code, 0) << two_heads.output;
  EXPECT_EQ(read_table("two heads", "choices")["examples"], std::vector<double>(2, 1.0));
  // A corrupted replica is found.
  const Outcome flipped =
      train_stages("flipped",
                   {"--parallel.schedule=pipedream", "--parallel.pipeline=2", "--parallel.replicas=2,1",
                    "--train.global_batch=8", "--guard.replica_check_every=1"},
                   2, {"MYLOS_FAULT=step:1:3:flip"});
  EXPECT_EQ(flipped.exit_code, static_cast<int>(ExitCode::numerical)) << flipped.output;
  EXPECT_THAT(flipped.output, HasSubstr("differs between replicas"));
}

/// One rank emulates the stages, and each continues the other's checkpoint.
TEST_F(PipeDream, IsEmulatedByOneRank) {
  for (const auto& [name, words] : rules()) {
    SCOPED_TRACE(name);
    const Words half = joined(words, {"--train.stop_step=4"});
    ASSERT_EQ(train_stages(name, words).exit_code, 0);
    for (const bool begins : {false, true}) {
      const std::string run = fmt::format("{} {}", name, begins);
      ASSERT_EQ(train_stages(run, half, 2, {}, begins).exit_code, 0);
      ASSERT_EQ(train_stages(run, joined(words, {"--restart"}), 2, {}, !begins).exit_code, 0);
      expect_same_checkpoint(snapshot(run, 8), snapshot(name, 8));
      EXPECT_EQ(steps_table(run)["loss"], steps_table(name)["loss"]);
    }
  }
}

/// Another schedule, layout or number of micro-batches begins with the newest weights for all, and says so.
TEST_F(PipeDream, ContinuesInOtherLayouts) {
  const Words words = rules().at("stashing");
  ASSERT_EQ(train_stages("whole", joined(words, {"--train.stop_step=4"})).exit_code, 0);
  const Words others[] = {{"--parallel.schedule=1f1b", "--optim.clip_norm=0", "--optim.clip_scope=model"},
                          {"--parallel.schedule=pipedream_2bw"},
                          {"--parallel.schedule=pipedream", "--train.micro_batch=1"}};
  for (const Words& other : others) {
    SCOPED_TRACE(testing::PrintToString(other));
    const std::string run = fmt::format("run {}", &other - others);
    fs::copy(run_path("whole"), run_path(run), fs::copy_options::recursive);
    const Outcome outcome = train_stages(run, joined(other, {"--restart"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    const bool is_asynchronous = other.front() != "--parallel.schedule=1f1b";
    EXPECT_EQ(
        outcome.output.find("older versions of the weights used -> the newest instead") != std::string::npos,
        is_asynchronous)
        << outcome.output;
    expect_every_step_once(run, 8);
  }
}

/// Wherever a rank is killed, a restart gives the run that nothing disturbed.
TEST_F(PipeDream, SurvivesKillsOnEachStage) {
  const Words words = rules().at("stashing");
  ASSERT_EQ(train_stages("whole", words).exit_code, 0);
  // In the startup, the steady state and a drain; in messages, the update and a checkpoint.
  const char* places[] = {
      "forward@0:{}:1",      "forward@1:{}:3", "backward@0:{}:4", "receive_forward@1:1:3",
      "send_backward@1:2:6", "reduce:{}:3",    "step:{}:7",       "checkpoint.write:{}:6"};
  int number = 0;
  for (const char* place : places) {
    const std::string fault = fmt::format("{}:kill", fmt::format(fmt::runtime(place), number++ % stages));
    SCOPED_TRACE(fault);
    const std::string run = fmt::format("run {}", number);
    EXPECT_NE(train_stages(run, words, 2, {"MYLOS_FAULT=" + fault}).exit_code, 0);
    ASSERT_EQ(train_stages(run, joined(words, {"--restart"})).exit_code, 0);
    expect_same_run(run, "whole", 8);
  }
}

TEST_F(PipeDream, ReportsStageMicroBatchAndVersionOfAStoppedRank) {
  for (int rank = 0; rank < stages; ++rank) {
    SCOPED_TRACE(rank);
    const Words arguments = arguments_of(fmt::format("run {}", rank), rules().at("stashing"));
    const Outcome outcome =
        run_until_silent(arguments, rank, fmt::format("backward@1:{}:3:stop", rank), {.ranks = stages});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::watchdog)) << outcome.output;
    // Micro-batch 5 of the run, on stages with delays of 2, 1 and 0 and 2 micro-batches per step.
    const int version = (5 - (stages - 1 - rank)) / 2;
    EXPECT_THAT(
        outcome.output,
        HasSubstr(fmt::format("step 3, stage {}, backward of micro-batch 1, weights {}", rank, version)));
  }
}

/// A stage skips for itself, and the step counts once.
TEST_F(PipeDream, SkipsOnTheStageWithABadGradient) {
  for (int rank = 0; rank < stages; ++rank) {
    const std::string run = fmt::format("run {}", rank);
    const Outcome outcome =
        train_stages(run, rules().at("stashing"), 2, {fmt::format("MYLOS_FAULT=reduce:{}:3:nan", rank)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, "step 3: update not applied"), 1);
    EXPECT_THAT(steps_table(run)["skipped"], ElementsAre(0, 0, 1, 0, 0, 0, 0, 0));
    EXPECT_THAT(snapshot(run, 8).position, HasSubstr("\"skipped\":1"));
  }
}

/// The same on replicas: two of the first stage, which take micro-batches 0, 2 and 1, 3 of a step, and one of
/// the last.
TEST_F(PipeDream, MeetsFaultsOnReplicas) {
  const Words words = {"--parallel.schedule=pipedream", "--parallel.pipeline=2", "--parallel.replicas=2,1"};
  constexpr int step = 4;
  ASSERT_EQ(train_stages("whole", words, step).exit_code, 0);
  int number = 0;
  for (const char* fault : {"forward@1:1:1", "backward@2:0:4", "reduce:1:3", "step:0:7", "forward@3:2:8",
                            "checkpoint.write:1:6"}) {
    SCOPED_TRACE(fault);
    const std::string run = fmt::format("run {}", number++);
    EXPECT_NE(train_stages(run, words, step, {fmt::format("MYLOS_FAULT={}:kill", fault)}).exit_code, 0);
    ASSERT_EQ(train_stages(run, joined(words, {"--restart"}), step).exit_code, 0);
    expect_same_run(run, "whole", 8);
  }
  for (int rank = 0; rank < 3; ++rank) {
    SCOPED_TRACE(rank);
    // A replica's own micro-batch, which the other one never has.
    const Outcome stopped =
        run_until_silent(arguments_of(fmt::format("stopped {}", rank), words, step), rank,
                         fmt::format("backward@{}:{}:3:stop", rank % 2, rank), {.ranks = stages});
    EXPECT_EQ(stopped.exit_code, static_cast<int>(ExitCode::watchdog)) << stopped.output;
    EXPECT_THAT(stopped.output,
                HasSubstr(fmt::format("step 3, stage {}, backward of micro-batch {}", rank / 2, rank % 2)));
    const std::string run = fmt::format("bad {}", rank);
    const Outcome bad = train_stages(run, words, step, {fmt::format("MYLOS_FAULT=reduce:{}:3:nan", rank)});
    EXPECT_EQ(bad.exit_code, 0) << bad.output;
    EXPECT_EQ(occurrences(bad.output, "step 3: update not applied"), 1);
    EXPECT_THAT(steps_table(run)["skipped"], ElementsAre(0, 0, 1, 0, 0, 0, 0, 0));
  }
}

/// The guard stops the run at a step that all stages agree on, and counts bad steps that follow one another.
TEST_F(PipeDream, StopsForBadGradients) {
  const std::pair<Words, std::string> cases[] = {{{"--guard.policy=stop"}, "MYLOS_FAULT=reduce:1:3:nan"},
                                                 {{"--guard.max_skips=2"}, "MYLOS_FAULT=reduce:1:*:nan"}};
  for (const auto& [more, fault] : cases) {
    SCOPED_TRACE(fault);
    const std::string run = "run" + more.front();
    const Outcome outcome =
        train_stages(run, joined(rules().at("stashing"), joined(more, {"--checkpoint.every=0"})), 2, {fault});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::numerical)) << outcome.output;
    const bool is_policy = more.front() == "--guard.policy=stop";
    EXPECT_THAT(expect_status(run, "failed", ExitCode::numerical),
                HasSubstr(is_policy ? "step 3: " : "step 2: "));
    // At most D + 2 steps later.
    const auto rows = static_cast<int>(num_rows(run));
    EXPECT_GE(rows, is_policy ? 3 : 2);
    EXPECT_LE(rows, (is_policy ? 3 : 2) + stages + 1);
    expect_every_step_once(run, rows);
  }
}

/// A stop request ends the run at one step on all stages, with a checkpoint from which it goes on.
TEST_F(PipeDream, StopsAtTheWallClockLimit) {
  const Words words = rules().at("2bw");
  ASSERT_EQ(train_stages("whole", words).exit_code, 0);
  const Outcome outcome = train_stages("run", joined(words, {"--train.wall_clock=0.001"}));
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::preempted)) << outcome.output;
  const std::int64_t stopped = status_step("run");
  EXPECT_LE(stopped, 1 + stages + 1);
  ASSERT_EQ(train_stages("run", joined(words, {"--restart"})).exit_code, 0);
  expect_same_run("run", "whole", 8);
}

/// Stages that the partitioner chooses.
class Partitioner : public PipeDream {
 protected:
  /// A profile of a model of four blocks in which a unit takes so many milliseconds per pass.
  std::string profile(const std::vector<int>& units) const {
    const Outcome traced = train_stages("traced", {"--parallel.schedule=1f1b", "--optim.clip_scope=model",
                                                   "--profile.step=1", "--train.steps=2"});
    EXPECT_EQ(traced.exit_code, 0) << traced.output;
    std::istringstream rows(slurp(run_path("traced") / "units-1.csv"));
    std::string text, row;
    std::getline(rows, text);
    for (const int time : units) {
      std::getline(rows, row);
      std::vector<std::string_view> cells = split(row, ',');
      const std::string seconds = fmt::format("{}e-3", time);
      for (std::size_t i = 1; i <= 3; ++i) cells.at(i) = seconds;
      text += "\n" + join(cells, ",");
    }
    const fs::path file = scratch() / "units.csv";
    spill(file, text + "\n");
    return "--parallel.stages=profile:" + file.string();
  }
  static Words open_stages() {
    return {"--parallel.schedule=pipedream", "--parallel.replicas=auto", "--parallel.pipeline=0"};
  }
  /// The row of the table of plans for so many stages.
  std::string planned(int number, const Words& more) const {
    Words words = joined({"--dry-run", "--schedule", "--ranks=4", "--model.layers=4", "--model.tied=false",
                          "--optim.clip_scope=stage", "--train.micro_batch=2", "--train.global_batch=8"},
                         joined(open_stages(), more));
    const Outcome outcome = run_mylos(train_arguments("planned", words), {});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::smatch row;
    const std::regex line(fmt::format("plans  [^$]*\n({} [^\n]*)\n", number));
    EXPECT_TRUE(std::regex_search(outcome.output, row, line)) << outcome.output;
    return std::regex_replace(row.str(1), std::regex(" +"), " ");
  }
};

/// The chosen layout is that of the resolved deck and, with the bandwidths of the first launch, of a restart.
TEST_F(Partitioner, ChoosesStagesAndReplicas) {
  const Words words = joined(open_stages(), {profile({6, 8, 4, 4, 1, 1})});
  const auto run_chosen = [&](const Words& more) { return train_stages("run", joined(words, more), 4); };
  const Outcome first = run_chosen({"--train.stop_step=4"});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_THAT(first.output, HasSubstr("chosen: 2 stages of 2,2 blocks with 2,1 replicas\n"));
  const std::string resolved = slurp(run_path("run") / "resolved.deck");
  EXPECT_THAT(resolved, AllOf(HasSubstr("\npipeline = 2\n"), HasSubstr("\nreplicas = \"2,1\"\n"),
                              HasSubstr("\nstages = \"2,2\"\n"), Not(HasSubstr("\nnode_gbps = 0\n"))));
  const Outcome rest = run_chosen({"--restart"});
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr(", bitwise\n"));
  EXPECT_EQ(slurp(run_path("run") / "resolved.deck"),
            std::regex_replace(resolved, std::regex("stop_step = 4"), "stop_step = 0"));
}

/// One stage may be best; it is plain data parallelism.
TEST_F(Partitioner, MayChooseOneStage) {
  const Outcome outcome = train_stages("run", joined(open_stages(), {profile({1, 1, 1, 1, 1, 2})}), 3);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("chosen: one stage, plain data parallelism"));
  EXPECT_THAT(slurp(run_path("run") / "resolved.deck"),
              AllOf(HasSubstr("\nschedule = accumulate\n"), HasSubstr("\ndata = 3\n")));
}

TEST_F(Partitioner, KnowsTheMachine) {
  const std::string units = profile({6, 8, 4, 4, 1, 1});
  EXPECT_EQ(planned(1, {units}).substr(0, 20), "1 4 4 0.018 passes o");
  EXPECT_THAT(planned(2, {units}), HasSubstr("passes of stage"));
  EXPECT_EQ(planned(1, {units, "--machine.memory_gb=0.0007"}),
            "1 none");  // the fastest needs 0.000676 or more
  EXPECT_THAT(planned(1, {units, "--machine.node_gbps=0.01"}), HasSubstr("sum of stage 0's gradients"));
  const Words two_nodes = {units, "--ranks-per-node=2", "--machine.node_gbps=1000"};
  EXPECT_THAT(planned(1, joined(two_nodes, {"--machine.link_gbps=1000"})), HasSubstr("passes of stage"));
  // Nodes that a deck pretends, and links that it simulates.
  EXPECT_THAT(
      planned(1, {units, "--comm.ranks_per_node=2", "--machine.node_gbps=1000", "--machine.link_gbps=0.01"}),
      HasSubstr("sum of stage 0's gradients"));
  EXPECT_THAT(planned(1, {units, "--comm.algorithm=ring", "--comm.simulate_gbps=0.01"}),
              HasSubstr("sum of stage 0's gradients"));
  EXPECT_THAT(planned(1, joined(two_nodes, {"--machine.link_gbps=0.01"})),
              HasSubstr("sum of stage 0's gradients"));
}

}  // namespace
}  // namespace mylos::test
