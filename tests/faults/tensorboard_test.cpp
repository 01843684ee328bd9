// SPDX-License-Identifier: BSD-3-Clause
// Runs whose metrics are also TensorBoard's events: every step once, whatever ended a launch.
#include <cerrno>
#include <cmath>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"
#include "tests/support/event_reader.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class TensorBoardRun : public RunTest {
 protected:
  const Words plain = {"--eval.every=1", "--eval.batches=1", "--data.valid=" + tokens().string()};
  const Words shown = plus(plain, {"--metrics.tensorboard=true"});

  static Words plus(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  fs::path events(const std::string& run, const char* name) const {
    return run_path(run) / "tensorboard" / name;
  }

  /// The column as the events should have it.
  static std::vector<std::pair<std::int64_t, float>> points_of(MetricsTable table,
                                                               const std::string& column) {
    std::vector<std::pair<std::int64_t, float>> points;
    for (std::size_t i = 0; i < table["step"].size(); ++i)
      points.emplace_back(static_cast<std::int64_t>(table["step"][i]), static_cast<float>(table[column][i]));
    return points;
  }

  static std::vector<std::pair<std::int64_t, float>> points_of(const ReadEvents& events,
                                                               const std::string& tag) {
    std::vector<std::pair<std::int64_t, float>> points;
    const auto found = events.scalars.find(tag);
    if (found == events.scalars.end()) return points;
    for (const ReadScalar& point : found->second) points.emplace_back(point.step, point.value);
    return points;
  }

  /// Expects the events in `folder` to be the run's metrics.
  void expect_metrics(const std::string& run, const fs::path& folder) {
    const ReadEvents train = read_events(folder / "train");
    const ReadEvents eval = read_events(folder / "eval");
    const MetricsTable steps = steps_table(run);
    for (const auto& [column, tag] :
         std::map<std::string, std::string>{{"loss", "loss"},
                                            {"learning_rate", "optimizer/learning_rate"},
                                            {"gradient_norm", "optimizer/gradient_norm"},
                                            {"tokens_per_second", "speed/tokens_per_second"},
                                            {"mfu", "speed/mfu"},
                                            {"time_backward", "time/backward"},
                                            {"wait_data", "wait/data"},
                                            {"memory_peak_max", "memory/peak_max"},
                                            {"memory_optimizer", "memory/optimizer"},
                                            {"payload_data_all_reduce", "payload/data_all_reduce"}}) {
      ASSERT_TRUE(steps.contains(column)) << column;
      EXPECT_EQ(points_of(train, tag), points_of(steps, column)) << tag;
    }
    EXPECT_EQ(train.scalars.size(), steps.size() - 1);  // without "step"
    const MetricsTable evaluations = read_table(run, "eval");
    for (const char* column : {"loss", "accuracy"})
      EXPECT_EQ(points_of(eval, column), points_of(evaluations, column)) << column;
    ASSERT_EQ(train.texts.count("deck"), 1U);
    EXPECT_THAT(train.texts.at("deck").back().second, HasSubstr("[model]\n"));
  }
};

TEST_F(TensorBoardRun, HasEveryStepOnceAfterKills) {
  constexpr int steps = 12;
  const Words words = plus(shown, {fmt::format("--train.steps={}", steps), "--restart"});
  int launches = 1;
  for (const char* fault :
       {"forward:1:3", "step:0:5", "checkpoint.rename:0:6", "checkpoint.verify:0:8", "evaluation:0:11"}) {
    const Outcome outcome = train_with_fault("run", std::string(fault) + ":kill", words);
    EXPECT_NE(outcome.exit_code, 0) << fault << outcome.output;
    ++launches;
  }
  // The beginning of a record, as a kill within a write may leave it.
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(events("run", "train")))
    newest = std::max(newest, entry.path());
  std::ofstream(newest, std::ios::binary | std::ios::app) << slurp(newest).substr(0, 20);
  const Outcome outcome = train("run", words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_every_step_once("run", steps);
  const ReadEvents train_events = read_events(events("run", "train"));
  EXPECT_EQ(std::ssize(train_events.starts), launches);
  expect_metrics("run", run_path("run") / "tensorboard");
}

TEST_F(TensorBoardRun, AFullDiskEndsTheEventsOnly) {
  for (const int write : {1, 8}) {
    const std::string plan =
        fmt::format("{}:0:pwrite:{}:{}", (run_path("run") / "tensorboard").string(), write, ENOSPC);
    const Outcome outcome =
        train("run", shown, {.environment = {"LD_PRELOAD=" MYLOS_PRELOADED, "MYLOS_FAIL=" + plan}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, "no more events for TensorBoard in this launch"), 1)
        << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("No space left on device"));
    const ReadEvents left = read_events(events("run", "train"));
    EXPECT_EQ(left.torn_bytes, 0);
    const std::size_t rows = steps_table("run").at("step").size();
    EXPECT_EQ(points_of(left, "loss").size(), static_cast<std::size_t>(write == 1 ? 0 : 1));
    // They can be made afterwards.
    const Outcome made = run_mylos({"report", "--tensorboard", run_path("run").string()}, {.ranks = 0});
    EXPECT_EQ(made.exit_code, 0) << made.output;
    EXPECT_EQ(points_of(read_events(events("run", "train")), "loss").size(), rows);
    expect_metrics("run", run_path("run") / "tensorboard");
    fs::remove_all(run_path("run"));
  }
}

TEST_F(TensorBoardRun, TakesWhatTheRunHadBefore) {
  ASSERT_EQ(train("run", plus(plain, {"--train.steps=4"})).exit_code, 0);
  EXPECT_FALSE(fs::exists(run_path("run") / "tensorboard"));
  const Outcome outcome = train("run", plus(shown, {"--train.steps=6", "--restart"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("metrics.tensorboard")));  // it changes no result
  expect_metrics("run", run_path("run") / "tensorboard");
  EXPECT_EQ(read_events(events("run", "train")).starts, (std::vector<std::int64_t>{1, 5}));
}

TEST_F(TensorBoardRun, IsMadeOfAnOlderRun) {
  ASSERT_EQ(train("run", plus(plain, {"--train.stop_step=2"})).exit_code, 0);
  ASSERT_EQ(train("run", plus(plain, {"--restart"})).exit_code, 0);
  const std::string folder = (scratch() / "events").string();
  const auto report = [&](const Words& more) {
    return run_mylos(plus({"report", "--tensorboard", run_path("run").string()}, more), {.ranks = 0});
  };
  const Outcome outcome = report({"--output=" + folder});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(folder + "/train/events.out.tfevents."));
  expect_metrics("run", folder);
  EXPECT_EQ(report({"--output=" + folder}).exit_code, 0);
  expect_metrics("run", folder);
  const ReadEvents events = read_events(fs::path(folder) / "train");
  // Files in folders of others stay; the run's own are replaced.
  EXPECT_EQ(events.starts.size(), 2U);
  EXPECT_EQ(report({}).exit_code, 0);
  EXPECT_EQ(report({}).exit_code, 0);
  EXPECT_EQ(read_events(run_path("run") / "tensorboard/train").starts.size(), 1U);
  // Each step at its time, by the clock of its launch.
  const MetricsTable launches = read_table("run", "launches");
  const MetricsTable steps = steps_table("run");
  const std::vector<ReadScalar>& loss = events.scalars.at("loss");
  for (std::size_t i = 0; i < loss.size(); ++i) {
    const std::size_t launch = i < 2 ? 0 : 1;
    double time = launches.at("unix_time")[launch];
    for (std::size_t j = launch == 0 ? 0 : 2; j <= i; ++j) time += steps.at("time_step")[j];
    EXPECT_EQ(loss[i].time, time) << i;
  }
  for (const std::string& bad :
       {run_path("run").string(), run_path("run").string() + "/checkpoints", std::string()})
    EXPECT_EQ(report({"--output=" + bad}).exit_code, static_cast<int>(ExitCode::usage)) << bad;
}

/// Evaluations that a restart gives up, and steps of launches without events.
TEST_F(TensorBoardRun, ALaunchMakesWhatOthersHaveNotWritten) {
  const Words all = plus(plain, {"--train.steps=12", "--checkpoint.keep=20"});
  const auto launch = [&](const Words& more) {
    const Outcome outcome = train("run", plus(all, more));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  };
  launch({"--metrics.tensorboard=true", "--train.stop_step=6"});
  launch({"--restart=step_000002", "--train.stop_step=8", "--optim.lr=1e-4"});
  launch({"--metrics.tensorboard=true", "--train.stop_step=10", "--restart"});
  expect_metrics("run", run_path("run") / "tensorboard");
  launch({"--metrics.tensorboard=true", "--restart=step_000004"});
  expect_metrics("run", run_path("run") / "tensorboard");
}

TEST_F(TensorBoardRun, ANewRunInItsPlaceBeginsAnew) {
  ASSERT_EQ(train("run", shown).exit_code, 0);
  fs::remove(run_path("run") / "resolved.deck");
  fs::remove_all(run_path("run") / "checkpoints");
  const Outcome outcome = train("run", shown);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("tensorboard/train/events.out.tfevents."));
  EXPECT_EQ(read_events(events("run", "train")).starts.size(), 1U);
  expect_metrics("run", run_path("run") / "tensorboard");
}

}  // namespace
}  // namespace mylos::test
