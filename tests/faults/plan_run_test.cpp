// SPDX-License-Identifier: BSD-3-Clause
// What a dry run prints equals what the run of the same command line then does: bytes, messages, memory,
// tokens, checkpoints.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/launch/setup.hpp"
#include "app/text/plan_text.hpp"
#include "app/text/planned_setup.hpp"
#include "core/model/routing_statistics.hpp"
#include "parallel/process_grid.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

class PlannedRun : public RunTest {
 protected:
  /// The plan of `mylos train DECK WORDS --dry-run`, exactly; expects that the command prints this plan.
  RunPlan planned(const Words& words) {
    CommandLine line;
    line.options["plugin-path"] = std::string(std::getenv("MYLOS_BUILD")) + "/lib/mylos";
    for (const std::string& word : words) {
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(2, equals - 2);
      const std::string value = word.substr(equals + 1);
      if (name == "ranks") {
        line.options[name] = std::int64_t{std::atoll(value.c_str())};
      } else {
        line.overrides.emplace_back(name, value);
      }
    }
    line.overrides.emplace_back("run.dir", run_path("run").string());
    const mylos::Setup setup = planned_setup(line, deck().string());
    RunPlan plan = plan_of(setup);
    statistics_ = RoutingStatistics(setup.config.model).count();
    const Coordinates at = setup.config.parallel.coordinates(0);
    waits_.clear();
    for (const AxisSet axes : ProcessGrid::distinct(at, setup.config.groups())) {
      if (axes != AxisSet()) waits_.insert("wait_" + ProcessGrid::label(at, axes));
    }
    Words dry = train_arguments("run", words);
    dry.emplace_back("--dry-run");
    const Outcome outcome = run_mylos(dry, {.ranks = 1});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(plan_text(setup.config, plan)));
    EXPECT_FALSE(fs::exists(run_path("run")));
    return plan;
  }

  void expect_as_planned(Words words, int ranks) {
    SCOPED_TRACE(testing::PrintToString(words));
    fs::remove_all(run_path("run"));
    words.insert(words.end(), {"--checkpoint.every=0", "--train.stop_step=3", "--backend.comm=shm"});
    const RunPlan plan = planned(words);
    std::erase_if(words, [](const std::string& word) { return word.starts_with("--ranks="); });
    const Outcome outcome = train("run", words, {.ranks = ranks});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("mylos: {} parameters, 8 steps of {} tokens, ",
                                                      plan.parameters, plan.tokens_per_step)));
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("{:.3f} GB per rank",
                                                      1e-9 * static_cast<double>(plan.memory_total()))));
    MetricsTable table = steps_table("run");
    const auto at = [&](const std::string& column) {
      return table.contains(column) ? table.at(column).at(1) : 0.0;  // of the second step
    };
    EXPECT_EQ(at("tokens"), 2.0 * static_cast<double>(plan.tokens_per_step));
    EXPECT_EQ(read_table("run", "checkpoints")["bytes"].at(0), static_cast<double>(plan.checkpoint_bytes));

    std::set<std::string> waits;
    for (const auto& [column, values] : table) {
      if (!column.starts_with("wait_")) continue;
      waits.insert(column);
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_GE(values[i], 0.0);
        EXPECT_LE(values[i], table.at("rank_time_max")[i]);
      }
    }
    EXPECT_EQ(waits, waits_);

    // After the step, the trainer gathers 9 numbers of each rank: times, memory, a stop request; and its
    // waits.
    std::uint64_t calls = 1;
    const double numbers = 9.0 + static_cast<double>(waits.size());
    std::map<std::string, double> payload = {{"payload_world_all_gather", numbers * 8.0 * ranks}};
    if (statistics_ > 0) {
      ++calls;
      payload["payload_world_all_reduce"] = 4.0 * static_cast<double>(statistics_);
    }
    for (const TrafficRow& row : plan.traffic) {
      calls += row.calls;
      payload[fmt::format("payload_{}_{}", row.axis, name_of(row.operation))] +=
          static_cast<double>(row.payload_bytes);
    }
    EXPECT_EQ(at("communication_calls"), static_cast<double>(calls));
    std::map<std::string, double> seen;
    for (const auto& [column, values] : table) {
      if (column.starts_with("payload_") && values[1] > 0.0) seen[column] = values[1];
    }
    EXPECT_EQ(seen, payload);

    for (int i = 0; i < num_memory_categories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      SCOPED_TRACE(name_of(category));
      const auto bytes = static_cast<double>(plan.memory[static_cast<std::size_t>(i)]);
      const double current = at(fmt::format("memory_{}", name_of(category)));
      const bool is_exact = category != MemoryCategory::communication &&
                            category != MemoryCategory::workspace &&
                            category != MemoryCategory::gathered_weights;
      if (is_exact) {
        EXPECT_EQ(current, bytes);
      } else {
        EXPECT_LE(current, 1.01 * bytes);
      }
    }
    EXPECT_LE(at("memory_peak_max"), 1.01 * static_cast<double>(plan.memory_total()));
    EXPECT_GE(at("memory_peak_max"), 0.95 * static_cast<double>(plan.memory_total()));
  }

 private:
  std::int64_t statistics_ = 0;  // of routers, which are summed after the step
  std::set<std::string> waits_;  // the columns of the groups of several ranks
};

TEST_F(PlannedRun, IsAsPlannedForOneRank) {
  expect_as_planned({}, 1);
  expect_as_planned({"--train.dtype=bf16", "--train.micro_batch=3", "--checkpoint.async=true"}, 1);
  expect_as_planned({"--train.dtype=fp16", "--optim.master=none", "--optim.name=sgd"}, 1);
}

/// Products of a routed block have other rows in evaluation, and are of kinds that depend on their number.
TEST_F(PlannedRun, IsAsPlannedWithRouters) {
  const Words depths = {"--model.width=512",       "--model.depth_capacity=0.125",
                        "--train.global_batch=32", "--eval.every=1",
                        "--eval.batches=1",        "--data.valid=" + tokens().string()};
  for (const Words& more : {Words{}, Words{"--train.dtype=bf16"}, Words{"--model.experts=2"}}) {
    Words words = depths;
    words.insert(words.end(), more.begin(), more.end());
    expect_as_planned(words, 1);
  }
  expect_as_planned({"--ranks=2", "--model.experts=4", "--parallel.expert=2", "--train.expert_capacity=1.25",
                     "--model.depth_capacity=0.5", "--comm.algorithm=ring"},
                    2);
}

/// Of the ranks that `--ranks` states, or the deck and its overrides.
TEST_F(PlannedRun, IsAsPlannedForEveryLayoutAndType) {
  expect_as_planned({"--ranks=2"}, 2);
  expect_as_planned({"--ranks=2", "--optim.name=muon", "--parallel.exchange=zero1"}, 2);
  expect_as_planned({"--parallel.data=2", "--parallel.tensor=2", "--optim.name=muon"}, 4);
  expect_as_planned({"--parallel.data=2", "--train.dtype=bf16", "--parallel.bucket_mb=0.02"}, 2);
  expect_as_planned({"--parallel.data=2", "--train.dtype=bf16", "--train.micro_batch=2"}, 2);
  expect_as_planned({"--parallel.tensor=2", "--parallel.sequence=true", "--train.dtype=fp16"}, 2);
  expect_as_planned({"--parallel.data=3", "--parallel.exchange=zero1", "--train.dtype=bf16"}, 3);
  expect_as_planned({"--ranks=3", "--parallel.exchange=zero2", "--train.micro_batch=2", "--train.dtype=fp16"},
                    3);
  expect_as_planned({"--parallel.data=2", "--parallel.tensor=2", "--parallel.exchange=zero3",
                     "--parallel.vocab=true", "--train.dtype=bf16", "--train.recompute=block"},
                    4);
}

}  // namespace
}  // namespace mylos::test
