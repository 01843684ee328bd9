// SPDX-License-Identifier: BSD-3-Clause
// Runs of models with experts: checkpoints that another grid continues, evaluations on other numbers of
// ranks, and conversions.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/file_util.hpp"
#include "io/json.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

class Experts : public RunTest {
 protected:
  /// One of two blocks is also routed.
  static Words model_words() {
    return {"--model.experts=4", "--train.expert_capacity=1.25", "--model.router_noise=learned",
            "--model.depth_capacity=0.5"};
  }
  Outcome train_experts(const std::string& run, int ranks, const Words& more = {}) const {
    Words words = model_words();
    words.emplace_back("--optim.lr=1e-3");
    words.insert(words.end(), more.begin(), more.end());
    return train(run, words, {.ranks = ranks});
  }
  double last_loss(const std::string& run) {
    const MetricsTable table = steps_table(run);
    return table.at("loss").back();
  }
};

/// Weights are those of the checkpoint, whichever ranks read them, and the losses go on as on one rank.
TEST_F(Experts, ContinueOnOtherGrids) {
  ASSERT_EQ(train_experts("reference", 1).exit_code, 0);
  struct Grid {
    int ranks;
    Words words;
  };
  const std::vector<Grid> grids = {
      {1, {}},
      {2, {"--parallel.expert=2"}},
      {2, {"--parallel.tensor=2", "--parallel.vocab=true"}},
      {4, {"--parallel.expert=2", "--parallel.exchange=zero3"}},
      {4, {"--parallel.expert=2", "--parallel.tensor=2", "--parallel.exchange=zero1"}},
      {4, {"--parallel.expert=2", "--parallel.pipeline=2"}}};
  for (std::size_t i = 0; i < grids.size(); ++i) {
    const Grid& first = grids[i];
    const Grid& second = grids[(i + 3) % grids.size()];
    const std::string run = fmt::format("run{}", i);
    SCOPED_TRACE(run);
    Words words = first.words;
    words.emplace_back("--train.stop_step=4");
    ASSERT_EQ(train_experts(run, first.ranks, words).exit_code, 0);
    // A learning rate of nearly zero changes no weight.
    fs::copy(run_path(run), run_path(run + "-still"), fs::copy_options::recursive);
    words = second.words;
    words.insert(words.end(), {"--train.stop_step=6", "--optim.weight_decay=0", "--restart"});
    Words tiny = model_words();
    tiny.emplace_back("--optim.lr=1e-30");
    tiny.insert(tiny.end(), words.begin(), words.end());
    const Outcome outcome = train(run + "-still", tiny, {.ranks = second.ranks});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const Snapshot before = snapshot(run, 4);
    for (const auto& [name, values] : snapshot(run + "-still", 6).tensors) {
      if (name.starts_with("weights")) {
        EXPECT_EQ(values, before.tensors.at(name)) << name;
      }
    }
    words = second.words;
    words.emplace_back("--restart");
    const Outcome continued = train_experts(run, second.ranks, words);
    ASSERT_EQ(continued.exit_code, 0) << continued.output;
    EXPECT_NEAR(last_loss(run) / last_loss("reference"), 1.0, 1e-4);
  }
}

/// With a learning rate of 0, what is dropped in training shows in its loss only.
TEST_F(Experts, DropNothingInEvaluations) {
  const Words common = {"--model.experts=4", "--optim.lr=0", "--train.steps=2",
                        "--data.valid=" + tokens().string(), "--eval.every=1"};
  for (const char* capacity : {"0", "0.3"}) {
    Words words = common;
    words.push_back(fmt::format("--train.expert_capacity={}", capacity));
    const Outcome outcome = train(fmt::format("capacity{}", capacity), words, {.ranks = 1});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  EXPECT_EQ(read_table("capacity0.3", "eval").at("loss"), read_table("capacity0", "eval").at("loss"));
  EXPECT_NE(steps_table("capacity0.3").at("loss"), steps_table("capacity0").at("loss"));
}

/// The deck that a run with other weights to begin with continues may leave all of their shape open.
TEST_F(Experts, BeginWithTheWeightsOfOthers) {
  ASSERT_EQ(train_experts("first", 1).exit_code, 0);
  const std::string init = "--model.init=" + run_path("first").string();
  const Outcome begun = train("second", {init, "--train.stop_step=2", "--optim.lr=0"}, {.ranks = 2});
  ASSERT_EQ(begun.exit_code, 0) << begun.output;
  EXPECT_EQ(snapshot("second", 2).tensors.at("weights.h5:h.0.moe.router.weight"),
            snapshot("first", 8).tensors.at("weights.h5:h.0.moe.router.weight"));
  EXPECT_EQ(train("second", {init, "--restart"}, {.ranks = 2}).exit_code, 0);
  fs::remove(run_path("second") / "resolved.deck");
  const Outcome without =
      train("second", {init, "--model.experts=4", "--model.depth_capacity=0.5", "--restart"}, {.ranks = 1});
  EXPECT_EQ(without.exit_code, 0) << without.output;
  const Outcome others = train("third", {init, "--model.experts=2"}, {.ranks = 1});
  EXPECT_EQ(others.exit_code, static_cast<int>(ExitCode::usage)) << others.output;
  EXPECT_THAT(others.output, HasSubstr("[model] experts = 2, but experts = 4 in"));
}

/// What a step records about routers is the same on all grids, and the report shows it.
TEST_F(Experts, AreReported) {
  ASSERT_EQ(train_experts("alone", 1).exit_code, 0);
  ASSERT_EQ(train_experts("divided", 4, {"--parallel.expert=2", "--parallel.pipeline=2"}).exit_code, 0);
  const MetricsTable alone = steps_table("alone");
  const MetricsTable divided = steps_table("divided");
  for (const char* column : {"balance_loss", "router_z_loss", "dropped_share", "largest_load", "load_0_3",
                             "load_1_0", "predictor_loss", "predicted_share", "predictor_hits"}) {
    ASSERT_TRUE(alone.contains(column)) << column;
    EXPECT_NEAR(divided.at(column).front() / alone.at(column).front(), 1.0, 1e-4) << column;
  }
  EXPECT_GT(alone.at("dropped_share").front(), 0.0);
  const std::string report = read_text_file(run_path("divided") / "report.html");
  EXPECT_THAT(report, HasSubstr("Loads of experts"));
  EXPECT_THAT(report, HasSubstr("<title>expert 3: "));
  EXPECT_THAT(report, HasSubstr("Routed blocks"));
}

TEST_F(Experts, RoutedBlocksHaveNoPlaceInOtherFormats) {
  ASSERT_EQ(train("run", {"--model.depth_capacity=0.5"}, {.ranks = 1}).exit_code, 0);
  const Outcome outcome =
      run_mylos({"convert", run_path("run").string(), (scratch() / "hf").string(), "--to=hf"}, {.ranks = 1});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("has routed blocks, for which"));
  const Outcome others =
      train("run", {"--model.depth_capacity=0.25", "--train.steps=9", "--restart"}, {.ranks = 1});
  EXPECT_EQ(others.exit_code, static_cast<int>(ExitCode::bad_data)) << others.output;
  EXPECT_THAT(others.output, HasSubstr("depths 0.5 of the tokens in every 2 blocks; the deck asks for"));
}

TEST_F(Experts, AreEvaluatedOnAnyNumberOfRanks) {
  ASSERT_EQ(train_experts("run", 2, {"--parallel.expert=2"}).exit_code, 0);
  const auto eval = [&](int ranks) {
    const Outcome outcome =
        run_mylos({"eval", run_path("run").string(), "--data=" + tokens().string()}, {.ranks = ranks});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output.substr(outcome.output.find("loss"), 12);
  };
  const std::string alone = eval(1);
  EXPECT_EQ(eval(2), alone);  // the ranks divide the experts
  EXPECT_EQ(eval(3), alone);
  // Three texts of different lengths: the ranks that divide the experts have different passes to run.
  const fs::path prompts = scratch() / "prompts.jsonl";
  std::ofstream(prompts) << R"({"prompt": "the"})"
                         << "\n"
                         << R"({"prompt": "in the beginning"})"
                         << "\n"
                         << R"({"prompt": "a"})"
                         << "\n";
  const auto texts = [&](int ranks) {
    const fs::path file = scratch() / fmt::format("texts{}.jsonl", ranks);
    const Outcome outcome = run_mylos({"generate", run_path("run").string(), "--prompts=" + prompts.string(),
                                       "--output=" + file.string(), "--tokens=9", "--temperature=0"},
                                      {.ranks = ranks});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::vector<std::string> of_prompts;
    for (std::istringstream lines(read_text_file(file)); !lines.eof();) {
      std::string line;
      if (std::getline(lines, line)) of_prompts.push_back(Json::parse(line).text("text"));
    }
    return of_prompts;
  };
  const std::vector<std::string> written = texts(1);
  EXPECT_EQ(written.size(), 3U);
  EXPECT_EQ(texts(2), written);
  EXPECT_EQ(texts(3), written);
  for (const char* target : {"hf", "llmc"}) {
    const Outcome outcome = run_mylos(
        {"convert", run_path("run").string(), (scratch() / target).string(), fmt::format("--to={}", target)},
        {.ranks = 1});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("has experts, for which"));
    EXPECT_FALSE(fs::exists(scratch() / target));
  }
}

}  // namespace
}  // namespace mylos::test
