// SPDX-License-Identifier: BSD-3-Clause
// mylos plan and mylos measure: what they print, write and refuse.
#include <algorithm>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/deck/machine_file.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "io/report/chrome_trace.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Plan : public RunTest {
 protected:
  fs::path machine(const std::string& more = "") const {
    const fs::path file = scratch() / "m.machine";
    write_text_file(file,
                    "[machine]\nname = machine of the test\nmemory = 1\nprice = 3\n[device]\nbandwidth = 50\n"
                    "peak_fp32 = 0.1\npeak_bf16 = 0.2\n" +
                        more +
                        "[node]\nranks = 2\nbandwidth = 5\nlatency = 1\n"
                        "[network]\nadapters = 1\nadapter_rate = 10\n");
    return file;
  }
  Words plan_arguments(const Words& more) const {
    Words words = {"plan", deck().string(), "--run.dir=" + run_path("run").string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Outcome plan(const Words& more) const { return run_mylos(plan_arguments(more), {.ranks = 0}); }
};

/// What a dry run prints is the beginning of the plan.
TEST_F(Plan, PrintsWhatADryRunPrints) {
  for (const Words& layout : {Words{"--ranks=2"}, Words{"--parallel.data=2", "--parallel.exchange=zero3"},
                              Words{"--parallel.tensor=2", "--train.dtype=bf16"}}) {
    Words dry = train_arguments("run", layout);
    dry.emplace_back("--dry-run");
    std::string printed = run_mylos(dry, {.ranks = 0}).output;
    printed.resize(printed.find("checkpoint"));
    const Outcome without = plan(layout);
    EXPECT_EQ(without.exit_code, 0);
    EXPECT_THAT(without.output,
                AllOf(HasSubstr(printed), HasSubstr("give a machine file with --machine=FILE")));
    Words words = layout;
    words.push_back("--machine=" + machine().string());
    const Outcome with = plan(words);
    EXPECT_EQ(with.exit_code, 0) << with.output;
    EXPECT_THAT(with.output, AllOf(HasSubstr(printed), HasSubstr("of a step on machine of the test"),
                                   HasSubstr("MFU"), HasSubstr("at 3 per device hour")));
  }
}

/// Ranks fill nodes as the machine file has them.
TEST_F(Plan, KnowsTheNodesOfTheMachine) {
  const std::string file = "--machine=" + machine().string();
  const auto network_bytes = [&](const std::string& ranks) {
    return Json::parse(plan({file, ranks, "--json"}).output).at("links").integer("network");
  };
  EXPECT_GT(network_bytes("--ranks=4"), 0);
  EXPECT_EQ(network_bytes("--ranks=2"), 0);
  const Outcome refused = plan({file, "--ranks=4", "--ranks-per-node=4"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("--ranks-per-node=4: a node of machine of the test has 2"));
  EXPECT_THAT(plan({file, "--ranks=3"}).output, HasSubstr("3 ranks do not fill nodes of 2"));
}

TEST_F(Plan, MarksALayoutThatDoesNotFit) {
  const Outcome outcome = plan({"--machine=" + machine().string(), "--machine.memory_gb=0.0001"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("DOES NOT FIT"));
}

TEST_F(Plan, GivesItsNumbersInOtherForms) {
  const std::string file = "--machine=" + machine().string();
  const Outcome json = plan({file, "--ranks=2", "--json"});
  ASSERT_EQ(json.exit_code, 0) << json.output;
  const Json numbers = Json::parse(json.output);
  EXPECT_GT(numbers.at("time").real("step"), 0.0);
  EXPECT_GT(numbers.at("memory").integer("total"), 0);
  EXPECT_EQ(numbers.at("calls").integer("data all_reduce"), 2);
  EXPECT_EQ(numbers.text("machine"), "machine of the test");
  const Outcome csv = plan({file, "--ranks=2", "--csv"});
  EXPECT_THAT(csv.output, AllOf(StartsWith("section,name,value,unit\n"), HasSubstr("\ntime,step,")));
  const fs::path traces = scratch() / "traces";
  const Outcome traced = plan({file, "--ranks=2", "--trace=" + traces.string()});
  EXPECT_EQ(traced.exit_code, 0) << traced.output;
  const auto summary = read_summary(traces / "trace-0.json");
  ASSERT_TRUE(summary);
  EXPECT_FALSE(summary->profile.operations.empty());
  EXPECT_THAT(read_text_file(traces / "trace-0.json"), HasSubstr("linear_forward"));
}

/// The stages of a run are those that it has cut, whatever the machine of the plan would cut.
TEST_F(Plan, KeepsTheStagesOfARun) {
  const Words words = {"--train.stop_step=4", "--model.layers=6", "--parallel.pipeline=2",
                       "--parallel.schedule=1f1b", "--train.micro_batch=2"};
  ASSERT_EQ(train("run", words).exit_code, 0);
  const std::string slow = machine("attention_share = \"16 0.0001\"\n").string();
  const Outcome outcome = run_mylos({"plan", run_path("run").string(), "--machine=" + slow}, {.ranks = 0});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, testing::ContainsRegex("memory_parameters +[0-9]+ +[0-9]+ +the same"));
  const Outcome refused = run_mylos({"plan", run_path("run").string(), "--json"}, {.ranks = 0});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("--json is for the plan of a deck"));
}

/// Memory and payload of a finished run are those of its plan, to the byte.
TEST_F(Plan, ComparesARunWithItsPlan) {
  const Words words = {"--train.stop_step=4", "--backend.comm=shm", "--train.micro_batch=1"};
  for (const char* exchange : {"ddp", "zero2"}) {
    fs::remove_all(run_path("run"));
    Words own = words;
    own.push_back(std::string("--parallel.exchange=") + exchange);
    ASSERT_EQ(train("run", own).exit_code, 0);
    const Outcome outcome =
        run_mylos({"plan", run_path("run").string(), "--machine=" + machine().string()}, {.ranks = 0});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, AllOf(StartsWith("2 ranks, medians of 2 steps\n"), HasSubstr("wait_data"),
                                      HasSubstr("rank_time_max")));
    std::istringstream lines(outcome.output);
    int rows = 0;
    for (std::string line; std::getline(lines, line);) {
      const bool is_exact = line.starts_with("payload_") || line.starts_with("memory_");
      if (!is_exact || line.starts_with("memory_communication") || line.starts_with("memory_workspace"))
        continue;
      EXPECT_THAT(line, HasSubstr("the same"));
      ++rows;
    }
    EXPECT_GE(rows, 5);
    EXPECT_THAT(run_mylos({"plan", run_path("run").string()}, {.ranks = 0}).output,
                HasSubstr("times are not compared"));
  }
}

TEST_F(Plan, RefusesWhatItCannotUse) {
  const auto expect = [&](const Words& words, const std::string& message) {
    const Outcome outcome = run_mylos(words, {.ranks = 0});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(message));
  };
  expect(plan_arguments({"--machine=missing.machine"}), "[machine] file: cannot open missing.machine");
  expect(plan_arguments({"--machine=" + machine("bandwith = 1\n").string()}),
         "did you mean [device] bandwidth?");
  expect(plan_arguments({"--json", "--csv"}), "--json and --csv: choose one");
  expect(plan_arguments({"--ranks=5"}), "global_batch");
  expect(plan_arguments({"--ranks=4", "--ranks-per-node=3"}), "--ranks-per-node=3 must divide --ranks=4");
  expect(plan_arguments({"--trace="}), "--trace is empty");
  expect({"plan", scratch().string()}, "holds no run: it has no resolved.deck");
  ASSERT_EQ(train("run", {"--train.stop_step=2"}).exit_code, 0);
  fs::remove(run_path("run") / "metrics.h5");
  expect({"plan", run_path("run").string()}, "has no metrics: metrics.h5 is missing");
}

/// A machine file that is measured on the ranks of a job is one that plans can use.
TEST_F(Plan, UsesWhatWasMeasured) {
  const fs::path file = scratch() / "measured.machine";
  const Words words = {"measure",
                       file.string(),
                       deck().string(),
                       "--no-grid",
                       "--steps=2",
                       "--bytes=65536",
                       "--run.dir=" + run_path("run").string()};
  const Outcome measured = run_mylos(words, {.ranks = 2});
  ASSERT_EQ(measured.exit_code, 0) << measured.output;
  EXPECT_THAT(measured.output, AllOf(HasSubstr("1 model on 2 ranks"), HasSubstr("wrote " + file.string())));
  EXPECT_FALSE(fs::exists(run_path("run")));
  const Machine machine = read_machine(file.string());
  EXPECT_FALSE(machine.products.empty());
  EXPECT_FALSE(machine.attention.empty());
  EXPECT_FALSE(machine.operations.empty());
  EXPECT_TRUE(machine.collectives.contains({"all_reduce", false, 2}));
  EXPECT_GE(machine.overlap.computation, 1.0);
  const Outcome planned = plan({"--machine=" + file.string(), "--ranks=2"});
  EXPECT_EQ(planned.exit_code, 0) << planned.output;
  EXPECT_THAT(planned.output, AllOf(HasSubstr("tokens/s"), Not(HasSubstr("was not measured"))));

  // A machine file may be replaced, nothing else.
  EXPECT_EQ(run_mylos(words, {.ranks = 1}).exit_code, 0);
  const Outcome refused = run_mylos({"measure", deck().string()}, {.ranks = 1});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("exists and is no machine file"));
  EXPECT_EQ(run_mylos({"measure", file.string(), "--no-grid"}, {.ranks = 1}).exit_code, 2);
}

TEST_F(Plan, TakesOperationsFromATrace) {
  ASSERT_EQ(train("run", {"--train.stop_step=3", "--profile.step=2"}, {.ranks = 1}).exit_code, 0);
  const fs::path file = scratch() / "from.machine";
  const Outcome measured =
      run_mylos({"measure", file.string(), "--from=" + run_path("run").string()}, {.ranks = 1});
  ASSERT_EQ(measured.exit_code, 0) << measured.output;
  const Machine machine = read_machine(file.string());
  EXPECT_FALSE(machine.products.empty());
  const Outcome planned = plan({"--machine=" + file.string()});
  EXPECT_THAT(planned.output, Not(HasSubstr("was not measured"))) << planned.output;
  ASSERT_EQ(train("other", {"--train.stop_step=1"}, {.ranks = 1}).exit_code, 0);
  const Outcome none =
      run_mylos({"measure", (scratch() / "none.machine").string(), "--from=" + run_path("other").string()},
                {.ranks = 1});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.output, HasSubstr("has no trace: set [profile] step"));
}

}  // namespace
}  // namespace mylos::test
