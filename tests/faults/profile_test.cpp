// SPDX-License-Identifier: BSD-3-Clause
// What profile.step leaves in a run's directory, from the deck to the report.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class Profile : public RunTest {
 protected:
  fs::path trace_path(std::int64_t step) const {
    return run_path("run") / fmt::format("trace-{}.json", step);
  }
};

/// The complete events of a rank in some categories.
std::vector<json> events_of(const json& trace, int rank, std::initializer_list<std::string_view> categories) {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("pid") != rank) continue;
    const std::string category = event.at("cat");
    if (std::ranges::find(categories, category) != categories.end()) events.push_back(event);
  }
  return events;
}

TEST_F(Profile, TracesTheStepOnEveryRank) {
  const Outcome outcome = train("run", {"--profile.step=3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step 3: wrote " + trace_path(3).string()));
  const json trace = json::parse(slurp(trace_path(3)));
  EXPECT_EQ(trace.at("otherData").at("step"), 3);
  for (int rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(rank);
    const std::vector<json> phases = events_of(trace, rank, {"phase"});
    const auto whole = std::ranges::find(phases, "step", [](const json& event) { return event.at("name"); });
    ASSERT_NE(whole, phases.end());
    const double begin = whole->at("ts");
    const double end = begin + whole->at("dur").get<double>();
    std::vector<std::string> names;
    double sum = 0.0;
    constexpr double rounding = 0.002;  // microseconds; times are written in thousandths
    for (const json& event : events_of(trace, rank, {"operation", "communication", "data"})) {
      EXPECT_GE(event.at("ts").get<double>(), begin);
      EXPECT_LE(event.at("ts").get<double>() + event.at("dur").get<double>(), end + rounding);
      sum += event.at("dur").get<double>();
      names.push_back(event.at("name"));
    }
    EXPECT_LE(sum, end - begin + rounding * static_cast<double>(names.size()));
    for (const char* name : {"linear_forward 32x96", "linear_backward_weight 32x384", "attention_backward",
                             "adamw", "all_reduce wait (data)", "read_samples", "copy_to_device"})
      EXPECT_THAT(names, testing::Contains(testing::AnyOf(name, name + std::string(" (kokkos)"),
                                                          name + std::string(" (onednn)"))));
  }
}

TEST_F(Profile, NamesTheAxisOfEachCollective) {
  const auto names = [&](const std::string& layout) {
    const Outcome outcome = train("run", {layout, "--profile.step=3"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::vector<std::string> found;
    for (const json& event : events_of(json::parse(slurp(trace_path(3))), 1, {"communication"}))
      found.push_back(event.at("name"));
    std::filesystem::remove_all(run_path("run"));
    return found;
  };
  using testing::Contains;
  const std::vector<std::string> zero3 = names("--parallel.exchange=zero3");
  EXPECT_THAT(zero3, Contains("all_gather (data)"));
  EXPECT_THAT(zero3, Contains("all_gather wait (data)"));
  EXPECT_THAT(zero3, Contains("reduce_scatter (data)"));
  EXPECT_THAT(zero3, Contains("reduce_scatter wait (data)"));
  EXPECT_THAT(names("--parallel.tensor=2"), Contains("all_reduce (tensor)"));
}

TEST_F(Profile, IsDrawnInTheReportEvenAfterARestart) {
  EXPECT_EQ(train("run", {"--profile.step=2", "--train.stop_step=4"}).exit_code, 0);
  const fs::path report = run_path("run") / "report.html";
  EXPECT_THAT(slurp(report), HasSubstr("step 2 of rank 0"));
  EXPECT_THAT(slurp(report), Not(HasSubstr("Schedule of the pipeline")));
  const Outcome rest = train("run", {"--restart", "--profile.step=6"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr("bitwise"));
  EXPECT_TRUE(fs::exists(trace_path(2)));
  EXPECT_THAT(slurp(report), HasSubstr("step 6 of rank 0"));
  EXPECT_THAT(slurp(report), HasSubstr("linear_"));

  spill(trace_path(6), "{");
  EXPECT_EQ(run_mylos({"report", run_path("run").string()}, {.ranks = 1}).exit_code, 0);
  EXPECT_THAT(slurp(report), HasSubstr("step 2 of rank 0"));
}

TEST_F(Profile, DrawsTheScheduleOfAPipeline) {
  for (const auto& [schedule, letters] : {std::pair{"1f1b", "FB"}, std::pair{"zero_bubble", "FIW"}}) {
    SCOPED_TRACE(schedule);
    const Outcome outcome =
        train("run", {"--parallel.pipeline=2", fmt::format("--parallel.schedule={}", schedule),
                      "--train.micro_batch=1", "--profile.step=3"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const json diagram = json::parse(slurp(trace_path(3))).at("otherData").at("diagram");
    ASSERT_EQ(diagram.at("ranks").size(), 2U);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const json& traced = diagram.at("ranks")[rank];
      const json& simulated = diagram.at("simulation")[rank];
      EXPECT_EQ(traced.at("passes"), simulated.at("passes"));
      EXPECT_LE(traced.at("busy"), traced.at("end"));
      EXPECT_LE(traced.at("end"), diagram.at("traced"));
      for (const json* row : {&traced, &simulated}) {
        const std::string kinds = row->at("kinds");
        for (const char letter : std::string_view(letters))
          EXPECT_NE(kinds.find(letter), std::string::npos) << letter;
      }
    }
    EXPECT_GT(diagram.at("simulated"), 0);
    const std::string report = slurp(run_path("run") / "report.html");
    EXPECT_THAT(report, HasSubstr("Schedule of the pipeline"));
    EXPECT_THAT(report, HasSubstr(fmt::format("pattern id=\"work-{}\"", letters[1])));
    std::filesystem::remove_all(run_path("run"));
  }
}

TEST_F(Profile, IsOffByDefault) {
  EXPECT_EQ(train("run", {"--train.stop_step=2"}).exit_code, 0);
  EXPECT_TRUE(std::ranges::none_of(fs::directory_iterator(run_path("run")), [](const auto& entry) {
    return entry.path().filename().string().starts_with("trace");
  }));
  EXPECT_THAT(slurp(run_path("run") / "report.html"), Not(HasSubstr("Time by operation")));
}

TEST_F(Profile, IsRefusedForAStepThatIsNeverTaken) {
  const Outcome outcome = train("run", {"--profile.step=9"});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage));
  EXPECT_THAT(outcome.output, HasSubstr("[profile] step = 9 must be at most [train] steps = 8"));
}

/// What a tool of Kokkos sees on a rank.
struct ToolLog {
  std::map<std::string, int> regions, kernels;
  std::set<std::string> places;  ///< of kernels: the names of the regions around each, outermost first
  std::set<std::string> allocations, leaks;
  bool is_nested = true;
};

ToolLog read_tool_log(const fs::path& file) {
  ToolLog log;
  std::vector<std::string> stack;
  std::map<std::string, int> held;
  std::istringstream lines(slurp(file));
  for (std::string line; std::getline(lines, line);) {
    const std::string what = line.substr(0, line.find(' '));
    const std::string name = line.substr(line.find(' ') + 1);
    if (what == "region") {
      ++log.regions[name];
      stack.push_back(name);
    } else if (what == "end") {
      log.is_nested = log.is_nested && !stack.empty();
      if (!stack.empty()) stack.pop_back();
    } else if (what == "kernel") {
      ++log.kernels[name];
      std::string place;
      for (const std::string& region : stack) place += region + "/";
      log.places.insert(place + name);
    } else if (what == "allocate") {
      ++held[name];
      log.allocations.insert(name.substr(name.find(' ') + 1, name.rfind(' ') - name.find(' ') - 1));
    } else if (what == "free") {
      --held[name];
    }
  }
  log.is_nested = log.is_nested && stack.empty();
  for (const auto& [name, count] : held)
    if (count > 0) log.leaks.insert(name);
  return log;
}

TEST_F(Profile, ToolsOfKokkosSeePhasesOperationsAndKernels) {
  const Words words = {"--train.steps=3",
                       "--checkpoint.every=2",
                       "--machine.peak_tflops=0",
                       "--backend.compute=kokkos",
                       "--eval.every=3",
                       "--eval.batches=1",
                       "--parallel.exchange=zero1",
                       "--data.valid=" + tokens().string()};
  const std::string output = (scratch() / "tool").string();
  const Outcome outcome = train(
      "run", words, {.environment = {"KOKKOS_TOOLS_LIBS=" MYLOS_KOKKOS_TOOL, "MYLOS_TOOL_OUTPUT=" + output}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* rank : {"0", "1"}) {
    SCOPED_TRACE(rank);
    ToolLog log = read_tool_log(output + "." + rank);
    EXPECT_TRUE(log.is_nested);
    for (const auto& [region, times] : std::map<std::string, int>{{"measure_peak", 1},
                                                                  {"initial_weights", 1},
                                                                  {"step", 3},
                                                                  {"forward", 3},
                                                                  {"backward", 3},
                                                                  {"optimizer", 3},
                                                                  {"evaluation", 1},
                                                                  {"checkpoint", 2}})
      EXPECT_EQ(log.regions[region], times) << region;
    for (const char* place : {"step/forward/attention_forward/mylos::attention_forward::query_blocks",
                              "step/optimizer/adamw/mylos::adamw::elements",
                              "initial_weights/fill_normal/mylos::fill_normal::pairs",
                              "measure_peak/fill_normal/mylos::fill_normal::pairs"})
      EXPECT_TRUE(log.places.contains(place)) << place;
    for (const std::string& place : log.places) {
      // Outside of regions, memory is only set up.
      EXPECT_TRUE(place.find('/') != std::string::npos || place.starts_with("mylos::allocate::") ||
                  place.starts_with("Kokkos::"))
          << place;
      const std::string kernel = place.substr(place.rfind('/') + 1);
      EXPECT_TRUE(kernel.starts_with("mylos::") || kernel.starts_with("Kokkos")) << kernel;
    }
    for (const std::string& label : log.allocations)
      EXPECT_TRUE(label.starts_with("mylos::") || label.starts_with("Kokkos::")) << label;
    EXPECT_THAT(log.allocations, testing::IsSupersetOf({"mylos::arena", "mylos::optimizer: first_moment"}));
    // Kokkos frees its own scratch memory under another label.
    for (const std::string& leak : log.leaks) EXPECT_THAT(leak, HasSubstr("Kokkos::")) << leak;
  }
  ASSERT_EQ(train("without", words).exit_code, 0);
  expect_same_run("run", "without", 3);
}

}  // namespace
}  // namespace mylos::test
