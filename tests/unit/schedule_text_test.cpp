// SPDX-License-Identifier: BSD-3-Clause
// The simulated step that a dry run prints: its figures, its diagram, the unit of its times.
#include "app/text/schedule_text.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/kinds.hpp"
#include "io/file_util.hpp"
#include "parallel/plan/unit_costs.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos {
namespace {

using testing::HasSubstr;
using testing::Not;

using Keys = std::vector<std::pair<std::string, std::string>>;

/// A small model whose stages are `pipeline` ranks, with a step of `micro_batches`.
RunConfig configured(int pipeline, int micro_batches, const std::string& schedule, Keys more = {}) {
  DeckErrors errors;
  Deck deck = Deck::parse(
      "[model]\nlayers = 6\nheads = 1\nwidth = 8\ncontext = 4\nvocab = 16\n[train]\nsteps = 9\nmicro_batch = "
      "1\n"
      "[data]\ntrain = tokens.bin\n[run]\ndir = runs/test\n",
      "run.deck", errors);
  more.insert(more.begin(), {{"parallel.pipeline", std::to_string(pipeline)},
                             {"parallel.schedule", schedule},
                             {"train.global_batch", std::to_string(micro_batches)}});
  for (const auto& [key, value] : more) deck.set(key, value, errors);
  ParamValues values;
  RunConfig config = make_run_config(deck, deck_params(), {pipeline}, errors, values);
  EXPECT_THAT(errors.messages(), testing::IsEmpty());
  return config;
}

/// The number that comes after `label` at the beginning of a line.
std::int64_t number_after(const std::string& text, const std::string& label) {
  std::smatch found;
  const bool is_there = std::regex_search(text, found, std::regex("\n" + label + " +([0-9]+)[\n/]"));
  EXPECT_TRUE(is_there) << label << text;
  return is_there ? std::stoll(found[1]) : -1;
}

/// The cells of the lines of the stages.
std::vector<std::vector<std::string>> table_of(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  const std::regex gap("  +");
  for (const std::string_view line : lines_of(text)) {
    const std::string row(line);
    if (row.empty() || std::isdigit(static_cast<unsigned char>(row.front())) == 0) continue;
    rows.emplace_back(std::sregex_token_iterator(row.begin(), row.end(), gap, -1),
                      std::sregex_token_iterator());
  }
  return rows;
}
enum Column : std::size_t { units = 1, parameters, memory, work, of_all, idle, idle_share, in_flight, sent };

struct Figures {
  std::int64_t makespan = 0;
  std::int64_t idle = 0, all = 1;  // the bubble, a fraction
  std::vector<std::int64_t> activations;
  std::vector<std::int64_t> idle_times;
};

Figures figures_of(RunConfig config) {
  set_pass_times(config, "1,1,1");
  std::vector<RunPlan> plans(static_cast<std::size_t>(config.parallel.pipeline));
  for (std::size_t stage = 0; stage < plans.size(); ++stage) plans[stage].rank = static_cast<int>(stage);
  const std::string text = simulation_text(config, plans);
  Figures figures{.makespan = number_after(text, "makespan"),
                  .idle = number_after(text, "bubble"),
                  .activations = {},
                  .idle_times = {}};
  std::smatch found;
  EXPECT_TRUE(std::regex_search(text, found, std::regex("\nbubble +[0-9]+/([0-9]+) = ")));
  figures.all = std::stoll(found[1]);
  for (const auto& row : table_of(text)) {
    figures.activations.push_back(std::stoll(row.at(in_flight)));
    figures.idle_times.push_back(std::stoll(row.at(idle)));
  }
  EXPECT_EQ(figures.activations.size(), plans.size());
  return figures;
}

/// The statements of the schedules, as they are printed.
TEST(ScheduleText, HasTheFiguresOfTheSchedules) {
  for (int p = 2; p <= 8; ++p) {
    for (const int m : {1, 2, p - 1, p, p + 1, 2 * p, 21, 64}) {
      // As many layers as allow only one cut, whose choice takes no time.
      const auto figures = [&](const std::string& schedule, int chunks, const Keys& more = {}) {
        Keys keys = {{"model.layers", std::to_string(std::max(1, p * chunks - 2))}};
        keys.insert(keys.end(), more.begin(), more.end());
        return figures_of(configured(p, m, schedule, keys));
      };
      const auto expect_bubble = [](const Figures& of, int idle, int all) {
        EXPECT_EQ(of.idle * all, of.all * idle);
      };
      SCOPED_TRACE(fmt::format("{} stages, {} micro-batches", p, m));
      const Figures gpipe = figures("gpipe", 1);
      EXPECT_EQ(gpipe.makespan, 3 * (m + p - 1));
      expect_bubble(gpipe, p - 1, m + p - 1);
      EXPECT_THAT(gpipe.activations, testing::Each(m));
      EXPECT_THAT(gpipe.idle_times, testing::Each(3 * (p - 1)));

      const Figures one = figures("1f1b", 1);
      EXPECT_EQ(one.makespan, 3 * (m + p - 1));
      expect_bubble(one, p - 1, m + p - 1);
      for (int s = 0; s < p; ++s)
        EXPECT_EQ(one.activations.at(static_cast<std::size_t>(s)), std::min(p - s, m));

      const Figures zero = figures("zero_bubble", 1);
      EXPECT_EQ(zero.makespan, 2 * m + p - 1 + std::max(m, p));
      EXPECT_LE(std::ranges::max(zero.activations), std::min(p, m));

      for (int v = 2; v <= 4 && m % p == 0; ++v) {
        const Figures interleaved = figures("interleaved", v, {{"parallel.chunks", std::to_string(v)}});
        EXPECT_EQ(interleaved.makespan, 3 * (v * m + p - 1));
        expect_bubble(interleaved, p - 1, v * m + p - 1);
        for (int s = 0; s < p; ++s) {
          EXPECT_EQ(interleaved.activations.at(static_cast<std::size_t>(s)),
                    std::min(2 * (p - 1 - s) + (v - 1) * p + 1, v * m));
        }
      }
      if (m < p) continue;
      const Figures v_shape = figures("zero_bubble_v", 2);
      EXPECT_GE(v_shape.makespan, 6 * m + p - 1);
      EXPECT_LE(v_shape.makespan, 6 * m + p - 1 + (p <= 4 ? 0 : 6));
      EXPECT_LE(std::ranges::max(v_shape.activations), 2 * p);
    }
  }
}

TEST(ScheduleText, DrawsADiagram) {
  RunConfig config = configured(2, 3, "1f1b", {{"parallel.stages", "3,3"}});
  set_pass_times(config, "1,1,1");
  EXPECT_THAT(simulation_text(config, make_plans(config)),
              HasSubstr("diagram      F forward, B backward, then the micro-batch\n"
                        "  column   0              5              10\n"
                        "  stage 0  F0 F1 .  .  B0--- F2 B1--- .  B2---\n"
                        "  stage 1  .  F0 B0--- F1 B1--- F2 B2--- .  .\n"));
  config = configured(2, 2, "interleaved", {{"parallel.chunks", "2"}});
  set_pass_times(config, "2,2,2");
  const std::string chunks = simulation_text(config, make_plans(config));
  EXPECT_THAT(chunks, HasSubstr("\nmakespan     30\n"));
  EXPECT_THAT(chunks,
              HasSubstr("F forward, B backward, then the micro-batch; before that, the chunk; a column is 2\n"
                        "  column   0                   5                   10\n"
                        "  stage 0  0F0 0F1 2F0 2F1 .   .   2B0---- "));
  config = configured(2, 2, "zero_bubble");
  set_pass_times(config, "1,1,1");
  EXPECT_THAT(simulation_text(config, make_plans(config)), HasSubstr("  stage 1  .  F0 I0 F1 I1 W0 W1\n"));
}

TEST(ScheduleText, CutsWideDiagrams) {
  RunConfig config = configured(4, 64, "gpipe");
  set_pass_times(config, "1,1,1");
  const std::string text = simulation_text(config, make_plans(config));
  EXPECT_THAT(text, HasSubstr("  columns 30 to 170 of 201 are left out\n"));
  std::size_t drawn = 0;
  for (const std::string_view line : lines_of(text)) {
    if (!line.starts_with("  stage ")) continue;
    ++drawn;
    EXPECT_THAT(std::string(line), HasSubstr("... "));
    EXPECT_LE(line.size(), 260U);
  }
  EXPECT_EQ(drawn, 4U);
}

TEST(ScheduleText, HasTheFiguresOfThePlans) {
  const RunConfig config = configured(3, 8, "1f1b", {{"parallel.stages", "2,3,1"}});
  const std::vector<RunPlan> plans = make_plans(config);
  const std::vector<std::vector<std::string>> rows = table_of(simulation_text(config, plans));
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].at(units), "embedding, blocks 0 to 1, tied matrix");
  EXPECT_EQ(rows[1].at(units), "blocks 2 to 4");
  EXPECT_EQ(rows[2].at(units), "block 5, head, tied matrix");
  EXPECT_EQ(rows[1].at(parameters), std::to_string(3 * (12 * 8 * 8 + 13 * 8)));
  double work_of_all = 0.0;
  for (std::size_t stage = 0; stage < 3; ++stage) {
    const std::vector<std::string>& row = rows[stage];
    EXPECT_EQ(row.at(memory), fmt::format("{:.3f}", 1e-9 * static_cast<double>(plans[stage].memory_total())));
    const bool is_inner = stage == 1;
    const double megabytes = 1e-6 * (is_inner ? 16 : 8) * 4 * 8 * 4;  // tokens, channels, bytes
    EXPECT_EQ(row.at(sent), is_inner ? "16" : "8");
    EXPECT_EQ(row.at(sent + 1), fmt::format("{:.3f}", megabytes));
    EXPECT_EQ(row.at(sent + 2), row.at(sent));
    EXPECT_EQ(row.at(sent + 3), row.at(sent + 1));
    work_of_all += std::stod(row.at(of_all));
  }
  EXPECT_NEAR(work_of_all, 100.0, 0.02);
}

/// The makespan, without its unit.
double makespan_of(const std::string& text) {
  return std::stod(text.substr(text.find("\nmakespan") + std::string_view("\nmakespan").size()));
}

TEST(ScheduleText, SaysWhatTimesMean) {
  const auto text_of = [](const RunConfig& config) { return simulation_text(config, make_plans(config)); };
  const Keys link = {{"comm.simulate_gbps", "1"}, {"comm.simulate_alpha", "50"}, {"comm.algorithm", "ring"}};
  const auto linked = [&](Keys more) {
    more.insert(more.end(), link.begin(), link.end());
    return configured(2, 4, "1f1b", more);
  };
  const std::string plain = text_of(configured(2, 4, "1f1b"));
  EXPECT_THAT(plain, HasSubstr("pass times   FLOPs of the operations; messages take no time\n"));
  const std::string unknown = text_of(linked({}));
  EXPECT_THAT(unknown,
              HasSubstr("messages take no time: [machine] peak_tflops does not say what a FLOP takes"));
  EXPECT_EQ(makespan_of(unknown), makespan_of(plain));
  const std::string known = text_of(linked({{"machine.peak_tflops", "1"}}));
  EXPECT_THAT(known, HasSubstr("messages take what [comm] simulate_alpha and simulate_gbps say\n"));
  EXPECT_THAT(known, HasSubstr(" s at [machine] peak_tflops = 1)\n"));
  EXPECT_GT(makespan_of(known), makespan_of(plain) + 4 * 50e-6 * 1e12 * 1e-9);  // GFLOP
  RunConfig given = linked({{"machine.peak_tflops", "1"}});
  set_pass_times(given, "1,2,0.5");
  const std::string fractions = text_of(given);
  EXPECT_THAT(fractions,
              HasSubstr("pass times   of every chunk F 1, I 2, W 0.5, B 2.5; messages take no time: "
                        "--pass-times has no unit\n"));
  EXPECT_THAT(fractions, HasSubstr("\nmakespan     17.5\n"));

  const test::ScratchDirectory scratch;
  const std::filesystem::path profile = scratch.path() / "units.csv";
  std::vector<UnitCost> costs = unit_costs(configured(2, 4, "1f1b"));
  for (UnitCost& cost : costs) cost.forward = cost.input = cost.weight = 0.25;
  write_text_file(profile, unit_profile_text(costs));
  for (const int stages : {1, 2}) {
    const std::string measured =
        text_of(configured(stages, 4, "auto", {{"parallel.stages", "profile:" + profile.string()}}));
    EXPECT_THAT(measured, HasSubstr("pass times   seconds of the profile; messages take no time\n"));
    EXPECT_THAT(measured, HasSubstr(stages == 1 ? "\nmakespan     24 s\n" : "\nmakespan     15 s\n"));
  }
}

TEST(ScheduleText, WorksForOneStage) {
  RunConfig config = configured(1, 3, "auto");
  set_pass_times(config, "1,1,1");
  const std::string text = simulation_text(config, make_plans(config));
  EXPECT_THAT(text,
              HasSubstr("schedule     accumulate: 1 stage, 3 micro-batches per step, 1 chunk per stage\n"));
  EXPECT_THAT(text, HasSubstr("\nmakespan     9\nbubble       0/1 = 0.00 %"));
  EXPECT_THAT(text, HasSubstr("\n  stage 0  F0 B0--- F1 B1--- F2 B2---\n"));
  EXPECT_THAT(text, Not(HasSubstr("left out")));
}

TEST(ScheduleText, RefusesOtherTimes) {
  RunConfig config = configured(2, 2, "1f1b");
  for (const char* text : {"1,1", "1,1,1,1", "1,0,1", "-1,1,1", "1,x,1", ""})
    EXPECT_THROW(set_pass_times(config, text), Error) << text;
}

}  // namespace
}  // namespace mylos
