// SPDX-License-Identifier: BSD-3-Clause
// The meaning of decks: presets, derived values, rules between parameters, and every deck of inputs/ and
// tests/decks_bad/.
#include "app/deck/run_config.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/deck/deck_changes.hpp"
#include "io/deck/deck.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::filesystem::path source_folder() {
  const char* folder = std::getenv("MYLOS_SOURCE");
  return folder != nullptr ? folder : ".";
}

std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream) << file;
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<std::filesystem::path> decks_in(const std::string& folder) {
  std::vector<std::filesystem::path> decks;
  for (const auto& file : std::filesystem::directory_iterator(source_folder() / folder)) {
    if (file.path().extension() == ".deck") decks.push_back(file.path());
  }
  std::sort(decks.begin(), decks.end());
  return decks;
}

struct Result {
  RunConfig config;
  ParamValues values;
  std::vector<std::string> problems;
};

Result configure(const std::string& text, std::int64_t ranks, const std::string& file_name = "run.deck") {
  Result result;
  DeckErrors errors;
  const Deck deck = Deck::parse(text, file_name, errors);
  result.config = make_run_config(deck, deck_params(), {ranks}, errors, result.values);
  result.problems = errors.messages();
  return result;
}

/// Configures a complete deck of GPT-2 124M that `extra` overrides.
Result configure_gpt2(const std::vector<std::pair<std::string, std::string>>& extra, std::int64_t ranks = 1,
                      std::int64_t ranks_per_node = 1) {
  Result result;
  DeckErrors errors;
  Deck deck = Deck::parse(
      "[model]\npreset = gpt2-124m\n[train]\nsteps = 100\nglobal_batch = 8\n[data]\ntrain = tokens.bin\n"
      "[run]\ndir = runs/test\n",
      "run.deck", errors);
  for (const auto& [key, value] : extra) deck.set(key, value, errors);
  result.config = make_run_config(deck, deck_params(), {ranks, ranks_per_node}, errors, result.values);
  result.problems = errors.messages();
  return result;
}

TEST(DeckParams, HaveValidDefaultsAndDistinctKeys) {
  std::set<std::string> keys;
  for (const ParamSpec& spec : deck_params()) {
    EXPECT_TRUE(keys.insert(std::string(spec.section) + "." + spec.name).second)
        << spec.section << "." << spec.name;
  }
  EXPECT_THAT(configure_gpt2({}).problems, IsEmpty());
}

TEST(DeckParams, AreDocumented) {
  EXPECT_EQ(contents(source_folder() / "docs/deck.md"), deck_markdown(deck_params()))
      << "write it again: mylos help deck --markdown > docs/deck.md";
}

TEST(RunConfig, TakesThePresetAndWhatOverridesIt) {
  const Result result = configure_gpt2({{"model.preset", "gpt2-1558m"}, {"model.layers", "2"}});
  ASSERT_THAT(result.problems, IsEmpty());
  EXPECT_EQ(result.config.model.layers, 2);
  EXPECT_EQ(result.config.model.heads, 25);
  EXPECT_EQ(result.config.model.width, 1600);
  EXPECT_EQ(result.config.model.feed_forward, 6400);
  EXPECT_EQ(result.config.model.context, 1024);
  EXPECT_EQ(result.config.model.vocab, 50257);
  EXPECT_EQ(result.config.model.padded_vocab(), 50304);
  EXPECT_EQ(result.config.train.seq_len, 1024);
}

/// A deck without a shape, or with what `shape` says of it, for a run that begins with a model of 3 layers.
Result configure_initial(const std::string& shape, const std::string& tokenizer = "none") {
  const ModelConfig initial{
      .layers = 3, .heads = 5, .width = 85, .feed_forward = 204, .context = 40, .vocab = 300, .tied = false};
  Result result;
  DeckErrors errors;
  const Deck deck = Deck::parse("[model]\ninit = a/model\n" + shape +
                                    "[train]\nsteps = 9\nglobal_batch = 8\n[optim]\nwarmup = 1\n[data]\n"
                                    "train = tokens.bin\ntokenizer = " +
                                    tokenizer + "\n[run]\ndir = runs/test\n",
                                "run.deck", errors);
  result.config = make_run_config(deck, deck_params(), {1}, errors, result.values, {}, initial);
  result.problems = errors.messages();
  return result;
}

TEST(RunConfig, TakesTheShapeOfTheInitialModel) {
  for (const char* shape :
       {"",
        "layers = 3\nheads = 5\nwidth = 85\nfeed_forward = 204\ncontext = 40\nvocab = 300\ntied = false\n"}) {
    const Result result = configure_initial(shape, "bytes");
    ASSERT_THAT(result.problems, IsEmpty());
    const ModelConfig& model = result.config.model;
    EXPECT_EQ(model.layers, 3);
    EXPECT_EQ(model.heads, 5);
    EXPECT_EQ(model.width, 85);
    EXPECT_EQ(model.feed_forward, 204);
    EXPECT_EQ(model.context, 40);
    EXPECT_EQ(model.vocab, 300);
    EXPECT_FALSE(model.tied);
    EXPECT_EQ(model.dropout, 0.0F) << "the deck's, not the source's";
    EXPECT_EQ(result.config.train.seq_len, 40);
    EXPECT_EQ(result.config.init, "a/model");
    EXPECT_EQ(result.values.integer("model.layers"), 3) << "for the resolved deck";
    EXPECT_FALSE(result.values.boolean("model.tied"));
  }
  const Result smaller = configure_initial("context = 8\n");
  ASSERT_THAT(smaller.problems, IsEmpty());
  EXPECT_EQ(smaller.config.model.context, 8);
  EXPECT_EQ(smaller.config.train.seq_len, 8);
}

TEST(RunConfig, RefusesAnotherShapeThanThatOfTheInitialModel) {
  EXPECT_THAT(
      configure_initial("layers = 4\nheads = 1\nwidth = 84\ncontext = 41\nvocab = 299\nfeed_forward = 340\n"
                        "tied = true\n")
          .problems,
      ElementsAre("run.deck:3: [model] layers = 4, but layers = 3 in a/model",
                  "run.deck:4: [model] heads = 1, but heads = 5 in a/model",
                  "run.deck:5: [model] width = 84, but width = 85 in a/model",
                  "run.deck:6: [model] context = 41, but context = 40 in a/model",
                  "run.deck:7: [model] vocab = 299, but vocab = 300 in a/model",
                  "run.deck:8: [model] feed_forward = 340, but feed_forward = 204 in a/model",
                  "run.deck:9: [model] tied = true, but tied = false in a/model"));
  const Result preset = configure_initial("preset = gpt2-124m\ntied = false\n");
  EXPECT_EQ(preset.problems.size(), 5U);
  EXPECT_THAT(preset.problems,
              testing::Contains("run.deck:3: [model] layers = 12, but layers = 3 in a/model"));
  // A value out of range is its own problem.
  EXPECT_THAT(configure_initial("layers = 4096\n").problems, ElementsAre(HasSubstr("4096 is out of range")));
  EXPECT_THAT(
      configure_initial("", "gpt2").problems,
      ElementsAre("run.deck:10: [model] vocab = 300 must be at least 50257 with [data] tokenizer = gpt2"));
}

TEST(RunConfig, AVocabularyMayBeLargerThanTheTokenizers) {
  EXPECT_THAT(configure_gpt2({{"model.vocab", "50304"}, {"data.tokenizer", "gpt2"}}).problems, IsEmpty());
  EXPECT_THAT(configure_gpt2({{"model.vocab", "257"}, {"data.tokenizer", "bytes"}}).problems, IsEmpty());
  EXPECT_THAT(configure_gpt2({{"model.vocab", "256"}, {"data.tokenizer", "bytes"}}).problems,
              ElementsAre(HasSubstr("vocab = 256 must be at least 257 with [data] tokenizer = bytes")));
}

TEST(RunConfig, EvaluationsNeedDataOrChoices) {
  EXPECT_THAT(configure_gpt2({{"eval.every", "2"}, {"eval.choices", "c.jsonl"}}).problems, IsEmpty());
  EXPECT_THAT(configure_gpt2({{"eval.every", "2"}, {"data.valid", "v.bin"}}).problems, IsEmpty());
  EXPECT_THAT(configure_gpt2({{"eval.every", "2"}}).problems,
              ElementsAre(HasSubstr("every = 2 needs [data] valid or [eval] choices")));
  EXPECT_EQ(configure_gpt2({{"eval.choices", "c.jsonl"}}).config.eval.choices_limit, std::nullopt);
}

TEST(RunConfig, DerivesAccumulation) {
  Result result = configure_gpt2({}, 2);
  EXPECT_EQ(result.config.parallel.data, 2);
  EXPECT_EQ(result.config.train.micro_batch, 4);
  EXPECT_EQ(result.config.train.accumulation, 1);
  result = configure_gpt2({{"train.micro_batch", "2"}}, 2);
  EXPECT_EQ(result.config.train.micro_batch, 2);
  EXPECT_EQ(result.config.train.accumulation, 2);
}

TEST(RunConfig, DerivesTheTypeOfGradients) {
  EXPECT_EQ(configure_gpt2({{"train.dtype", "bf16"}}).config.train.grad_dtype, DType::bf16);
  EXPECT_EQ(configure_gpt2({{"train.dtype", "bf16"}, {"train.micro_batch", "2"}}).config.train.grad_dtype,
            DType::fp32);
  EXPECT_EQ(configure_gpt2({{"train.dtype", "bf16"}, {"train.grad_dtype", "fp32"}}).config.train.grad_dtype,
            DType::fp32);
  EXPECT_EQ(configure_gpt2({{"train.dtype", "fp32"}}).config.train.grad_dtype, DType::fp32);
}

TEST(RunConfig, KeepsAMasterUnlessToldOtherwise) {
  EXPECT_TRUE(configure_gpt2({{"train.dtype", "bf16"}}).config.optimizer.keeps_master);
  const Result result =
      configure_gpt2({{"train.dtype", "fp16"}, {"optim.master", "none"}, {"train.seed", "7"}});
  EXPECT_THAT(result.problems, IsEmpty());
  EXPECT_FALSE(result.config.optimizer.keeps_master);
  EXPECT_EQ(result.config.optimizer.seed, 7U);
  EXPECT_THAT(configure_gpt2({{"optim.master", "none"}}).problems,
              ElementsAre("--optim.master: [optim] master = none needs [train] dtype = bf16 or fp16: weights "
                          "in fp32 are their own master"));
}

TEST(RunConfig, IsReproducedByTheResolvedDeck) {
  const Result first =
      configure_gpt2({{"train.dtype", "bf16"}, {"train.micro_batch", "2"}, {"optim.lr", "3e-4"}}, 2);
  const Result again = configure(write_deck(deck_params(), first.values), 2);
  EXPECT_THAT(again.problems, IsEmpty());
  EXPECT_EQ(again.values.all(), first.values.all());
  EXPECT_EQ(first.values.integer("model.width"), 768);
  EXPECT_EQ(first.values.integer("model.feed_forward"), 3072);
  EXPECT_EQ(first.values.integer("train.seq_len"), 1024);
  EXPECT_EQ(first.values.integer("parallel.data"), 2);
  EXPECT_EQ(first.values.text("train.grad_dtype"), "fp32");
}

TEST(RunConfig, BlamesTheKeyThatTheUserWrote) {
  EXPECT_THAT(
      configure_gpt2({{"model.width", "770"}}).problems,
      ElementsAre(
          "--model.width: [model] heads = 12 must divide width = 770; use 1, 2, 5, 7, 10, 11, 14 or 22"));
  EXPECT_THAT(configure_gpt2({{"model.context", "512"}, {"train.seq_len", "1024"}}).problems,
              ElementsAre("--train.seq_len: [train] seq_len = 1024 must be at most [model] context = 512"));
}

TEST(RunConfig, AcceptsTheLimitsThemselves) {
  EXPECT_THAT(configure_gpt2({{"train.stop_step", "100"},
                              {"profile.step", "100"},
                              {"optim.schedule", "wsd"},
                              {"optim.warmup", "60"},
                              {"optim.decay_steps", "40"},
                              {"optim.min_lr", "6e-4"},
                              {"train.seq_len", "1024"},
                              {"model.heads", "16"},
                              {"model.width", "1048576"},
                              {"model.feed_forward", "4194304"},
                              {"model.vocab", "1048576"}})
                  .problems,
              IsEmpty());
}

TEST(RunConfig, TakesTheWidthOfFeedForwardLayers) {
  const Result result = configure_gpt2({{"model.feed_forward", "2000"}, {"model.experts", "4"}});
  ASSERT_THAT(result.problems, IsEmpty());
  EXPECT_EQ(result.config.model.inner_width(), 2000);
  EXPECT_EQ(result.config.model.experts.width, 2000);
  EXPECT_EQ(configure_gpt2({{"model.width", "960"}}).config.model.feed_forward, 3840);
  using Keys = std::vector<std::pair<std::string, std::string>>;
  const Keys odd = {{"model.feed_forward", "2002"}, {"parallel.tensor", "4"}};
  EXPECT_THAT(
      configure_gpt2(odd, 4).problems,
      ElementsAre("--model.feed_forward: [model] feed_forward = 2002 must be a multiple of [parallel] "
                  "tensor = 4; use 2000 or 2004"));
  Keys unused = odd;  // every block has experts
  unused.insert(unused.end(), {{"model.experts", "4"}, {"model.expert_width", "64"}});
  EXPECT_THAT(configure_gpt2(unused, 4).problems, IsEmpty());
}

TEST(RunConfig, RefusesLayersBeyondTheAddressesOfPrograms) {
  using Keys = std::vector<std::pair<std::string, std::string>>;
  const Keys wide = {{"model.heads", "16"}, {"model.width", "1048576"}, {"model.context", "65536"}};
  Keys keys = wide;
  keys.emplace_back("train.global_batch", "1025");
  EXPECT_THAT(
      configure_gpt2(keys).problems,
      ElementsAre(HasSubstr("micro_batch = 1025 with seq_len = 65536 is too large for layers of width "
                            "1048576 and 4194304; use micro_batch = 1024 or less")));
  keys = wide;
  keys.emplace_back("model.experts", "1024");
  EXPECT_THAT(configure_gpt2(keys).problems, ElementsAre(HasSubstr("experts = 1024 of width = 1048576")));
}

TEST(RunConfig, SuggestsLegalBatches) {
  EXPECT_THAT(configure_gpt2({{"train.micro_batch", "16"}}, 2).problems,
              ElementsAre(HasSubstr("use global_batch = 32, or micro_batch = 1, 2 or 4")));
  EXPECT_THAT(configure_gpt2({}, 16).problems,
              ElementsAre(HasSubstr("use global_batch = 16, or data = 1, 2, 4 or 8")));
}

TEST(RunConfig, ChecksTheDivisionAmongRanks) {
  const auto problems = [](std::vector<std::pair<std::string, std::string>> keys) {
    keys.insert(keys.end(), {{"train.global_batch", "8"}, {"train.micro_batch", "2"}});
    return configure_gpt2(keys, 4);
  };
  EXPECT_EQ(problems({{"parallel.exchange", "zero2"}}).config.parallel.shard, 4);
  EXPECT_EQ(problems({{"parallel.exchange", "zero2"}, {"parallel.shard", "2"}}).config.parallel.shard, 2);
  EXPECT_EQ(problems({}).config.parallel.shard, 1);
  EXPECT_THAT(problems({{"parallel.shard", "2"}}).problems,
              ElementsAre(HasSubstr("shard = 2 needs an exchange that shards, not ddp")));
  EXPECT_THAT(problems({{"parallel.exchange", "zero1"}, {"parallel.shard", "1"}}).problems,
              ElementsAre(HasSubstr(
                  "shard = 1 does not divide data = 4 into groups of two or more; use 2 or 4, or 0")));
  EXPECT_THAT(problems({{"parallel.exchange", "zero1"}, {"parallel.shard", "3"}}).problems,
              ElementsAre(HasSubstr(
                  "shard = 3 does not divide data = 4 into groups of two or more; use 2 or 4, or 0")));
  EXPECT_THAT(problems({{"parallel.exchange", "zero1"}, {"parallel.shard", "two"}}).problems,
              ElementsAre(HasSubstr("shard = two must be a number of ranks, node, or 0 for all")));
}

/// The key belongs to the plugin for CUDA, which most builds do not have.
TEST(RunConfig, RefusesAutotuneIfRanksComputeTheSameProducts) {
  std::vector<ParamSpec> specs(deck_params().begin(), deck_params().end());
  specs.push_back(boolean_param("backend", "autotune", "false", ""));
  const auto problems = [&](const std::string& parallel) {
    DeckErrors errors;
    const Deck deck = Deck::parse(
        "[model]\npreset = gpt2-124m\n[train]\nsteps = 100\nglobal_batch = 8\n[data]\ntrain = tokens.bin\n"
        "[run]\ndir = runs/test\n[backend]\nautotune = true\n[parallel]\n" +
            parallel,
        "run.deck", errors);
    ParamValues values;
    make_run_config(deck, specs, {2, 1}, errors, values);
    return errors.messages();
  };
  EXPECT_THAT(
      problems("tensor = 2\n"),
      ElementsAre(HasSubstr("autotune = true cannot be used with [parallel] tensor = 2 unless vocab")));
  EXPECT_THAT(problems("tensor = 2\nvocab = true\n"), IsEmpty());
  EXPECT_THAT(problems("data = 2\n"), IsEmpty());
}

TEST(RunConfig, LeavesGraphsToTheBackend) {
  EXPECT_EQ(configure_gpt2({}, 4).config.graphs, std::nullopt);
  EXPECT_EQ(configure_gpt2({{"parallel.exchange", "zero3"}}, 4).config.graphs, std::nullopt);
  EXPECT_EQ(configure_gpt2({{"backend.graphs", "true"}}, 4).config.graphs, true);
  EXPECT_EQ(configure_gpt2({{"backend.graphs", "false"}}, 4).config.graphs, false);
}

TEST(RunConfig, ChecksTheDivisionAlongTheTensorAxis) {
  const Result result = configure_gpt2({{"parallel.tensor", "4"}}, 8);
  EXPECT_THAT(result.problems, IsEmpty());
  EXPECT_EQ(result.config.parallel.tensor, 4);
  EXPECT_EQ(result.config.parallel.data, 2);
  EXPECT_EQ(result.config.parallel.world_size(), 8);
  EXPECT_THAT(configure_gpt2({{"parallel.tensor", "5"}}, 10).problems,
              ElementsAre(HasSubstr("tensor = 5 must divide [model] heads = 12; use 1, 2, 3, 4, 6 or 12")));
  EXPECT_THAT(configure_gpt2({{"model.preset", "gpt2-1558m"}, {"parallel.tensor", "2"}}, 2).problems,
              ElementsAre(HasSubstr("tensor = 2 must divide [model] heads = 25; use 1")));
  EXPECT_THAT(configure_gpt2({{"parallel.tensor", "3"}}, 8).problems,
              ElementsAre(HasSubstr("tensor = 3 must divide this run's 8 ranks; use 1, 2 or 4")));
  EXPECT_THAT(configure_gpt2({{"parallel.tensor", "2"}, {"parallel.data", "3"}}, 8).problems,
              ElementsAre(HasSubstr("data = 3 needs 6 ranks, but this run has 8; use data = 4")));
  const Result divided = configure_gpt2(
      {{"parallel.tensor", "4"}, {"parallel.vocab", "true"}, {"parallel.sequence", "true"}}, 8);
  EXPECT_THAT(divided.problems, IsEmpty());
  EXPECT_TRUE(divided.config.parallel.splits.vocab && divided.config.parallel.splits.sequence);
  EXPECT_THAT(
      configure_gpt2({{"parallel.tensor", "4"},
                      {"parallel.sequence", "true"},
                      {"train.seq_len", "6"},
                      {"train.micro_batch", "1"},
                      {"train.global_batch", "2"}},
                     8)
          .problems,
      ElementsAre(HasSubstr("sequence = true divides the 6 rows of a micro-batch, 1 x 6 tokens, among "
                            "tensor = 4 ranks; use micro_batch = 2, or sequence = false")));
  EXPECT_THAT(configure_gpt2({{"parallel.vocab", "true"}}, 2).problems,
              ElementsAre(HasSubstr("vocab = true needs more than one tensor rank")));
}

using Keys = std::vector<std::pair<std::string, std::string>>;

/// Replaces a value among keys, or adds it.
void set(Keys& keys, const std::string& key, const std::string& value) {
  std::erase_if(keys, [&](const auto& own) { return own.first == key; });
  keys.emplace_back(key, value);
}

/// Keys of GPT-2 124M in four stages, with micro-batches of one sequence.
Keys staged(const Keys& more) {
  Keys keys = {{"parallel.pipeline", "4"}, {"train.micro_batch", "1"}};
  for (const auto& [key, value] : more) set(keys, key, value);
  return keys;
}

std::string scratch_file(const std::string& name, const std::string& text) {
  static const test::ScratchDirectory scratch;
  test::spill(scratch.path() / name, text);
  return (scratch.path() / name).string();
}

TEST(RunConfig, TakesExperts) {
  const Result result = configure_gpt2({{"model.experts", "8"},
                                        {"parallel.expert", "4"},
                                        {"parallel.exchange", "zero3"},
                                        {"train.expert_capacity", "1.25"}},
                                       8);
  ASSERT_THAT(result.problems, IsEmpty());
  const ExpertConfig& experts = result.config.model.experts;
  EXPECT_EQ(experts.width, 3072);
  EXPECT_EQ(experts.router, RouterKind::topk_softmax);
  EXPECT_EQ(experts.places(1024), 320);
  EXPECT_EQ(experts.places(3), 1);
  const Coordinates last = result.config.parallel.coordinates(7);
  EXPECT_EQ(last.extent(Axis::expert), 4);
  EXPECT_EQ(last.extent(Axis::shard), 2);
  EXPECT_EQ(last.index(Axis::expert), 3);
  const Result one = configure_gpt2({{"model.experts", "8"}, {"model.experts_per_token", "1"}}, 8);
  EXPECT_EQ(one.config.model.experts.router, RouterKind::softmax_topk);
}

TEST(RunConfig, RefusesExpertsThatCannotBe) {
  struct Case {
    Keys keys;
    std::string problem;
  };
  const std::vector<Case> cases = {
      {{{"model.experts", "6"}, {"parallel.expert", "4"}},
       "expert = 4 must divide [model] experts = 6 and data = 8; use 1 or 2"},
      {{{"model.experts", "8"},
        {"parallel.expert", "2"},
        {"parallel.data", "1"},
        {"parallel.tensor", "4"},
        {"parallel.pipeline", "2"}},
       "expert = 2 must divide [model] experts = 8 and data = 1; use 1"},
      {{{"model.experts", "8"},
        {"parallel.expert", "4"},
        {"parallel.exchange", "zero1"},
        {"parallel.shard", "2"}},
       "shard = 2 must be a multiple of expert = 4; use shard = 4, or 0 for all"},
      {{{"parallel.expert", "2"}}, "expert = 2 needs [model] experts"},
      {{{"model.expert_width", "64"}}, "expert_width needs [model] experts"},
      {{{"train.expert_capacity", "2"}}, "expert_capacity needs [model] experts"},
      {{{"train.balance_loss", "0.02"}}, "balance_loss needs [model] experts"},
      {{{"model.experts", "2"}, {"model.experts_per_token", "3"}},
       "experts_per_token = 3 must be at most experts = 2"},
      {{{"model.experts", "2"}, {"model.experts_per_token", "1"}, {"model.router", "topk_softmax"}},
       "the router learns nothing; use router = softmax_topk"},
      {{{"model.experts", "2"}, {"model.expert_every", "13"}},
       "expert_every = 13 must be at most layers = 12"},
      {{{"model.experts", "2"}, {"model.expert_width", "6"}, {"parallel.tensor", "4"}},
       "expert_width = 6 must be a multiple of [parallel] tensor = 4"},
      {{{"model.experts", "2"},
        {"parallel.expert", "2"},
        {"parallel.pipeline", "2"},
        {"parallel.schedule", "pipedream"},
        {"parallel.replicas", "6,2"},
        {"model.tied", "false"},
        {"optim.clip_norm", "0"}},
       "expert = 2 needs as many ranks in each stage, not replicas = 6,2; use data for equal ones, or expert "
       "= 1"}};
  for (const Case& own : cases)
    EXPECT_THAT(configure_gpt2(own.keys, 8).problems, Contains(HasSubstr(own.problem))) << own.problem;
  // A default may be said, in whatever form.
  EXPECT_THAT(configure_gpt2({{"train.expert_capacity", "0.0"}, {"train.balance_loss", "1e-2"}}, 8).problems,
              IsEmpty());
}

TEST(RunConfig, TakesDepths) {
  const Result result = configure_gpt2({{"model.depth_capacity", "0.125"}, {"parallel.tensor", "2"}}, 8);
  ASSERT_THAT(result.problems, IsEmpty());
  const DepthConfig& depths = result.config.model.depths;
  EXPECT_EQ(depths.tokens(1024), 128);
  EXPECT_EQ(depths.tokens(9), 2);
  EXPECT_FALSE(depths.are_in(0));
  EXPECT_TRUE(depths.are_in(1));
  const std::vector<std::pair<Keys, std::string>> cases = {
      {{{"model.depth_capacity", "1.5"}}, "depth_capacity"},
      {{{"model.depth_every", "3"}}, "depth_every needs [model] depth_capacity"},
      {{{"model.depth_capacity", "0.5"}, {"model.depth_every", "13"}},
       "depth_every = 13 must be at most layers = 12"},
      {{{"model.depth_capacity", "0.5"}, {"parallel.tensor", "2"}, {"parallel.sequence", "true"}},
       "depth_capacity cannot be used with [parallel] sequence = true"},
      {{{"model.depth_capacity", "0.5"}, {"model.width", "4"}, {"model.heads", "1"}},
       "depth_capacity needs a width of at least 8"}};
  for (const auto& [keys, problem] : cases)
    EXPECT_THAT(configure_gpt2(keys, 8).problems, Contains(HasSubstr(problem))) << problem;
}

TEST(RunConfig, TakesPipelines) {
  const Result result = configure_gpt2(staged({}), 8);
  ASSERT_THAT(result.problems, IsEmpty());
  EXPECT_EQ(result.config.parallel.data, 2);
  EXPECT_EQ(result.config.parallel.pipeline, 4);
  EXPECT_EQ(result.values.text("parallel.schedule"), "1f1b");
  EXPECT_EQ(configure_gpt2({}, 8).values.text("parallel.schedule"), "accumulate");
  EXPECT_THAT(configure_gpt2(staged({{"parallel.schedule", "zero_bubble_v"}}), 4).config.parallel.placement,
              ElementsAre(0, 1, 2, 3, 3, 2, 1, 0));
  // Empty chunks are allowed at both ends.
  EXPECT_THAT(configure_gpt2(staged({{"parallel.stages", "0,6,6,0"}}), 4).config.parallel.cuts,
              ElementsAre(1, 7, 13));
}

TEST(RunConfig, RefusesWhatStagesCannotKnowInTime) {
  struct Case {
    Keys keys;
    std::string problem;
  };
  const std::vector<Case> cases = {
      {{{"optim.clip_scope", "model"}},
       "[optim] clip_norm = 1 clips by the norm of the whole model, which no stage of schedule = pipedream "
       "knows "
       "in time; use clip_scope = stage, or clip_norm = 0"},
      {{{"model.tied", "true"}},
       "the two stages with the matrix update it at different times; use tied = false"},
      {{{"train.dtype", "fp16"}},
       "loss_scale_window = 2000 changes the loss scale by the gradient of the whole"},
      {{{"guard.spike_factor", "3"}}, "spike_factor = 3 judges the gradient of the whole model"},
      {{{"parallel.chunks", "2"}},
       "chunks = 2 cannot be used with schedule = pipedream, whose stages have 1 chunk"},
      {{{"parallel.exchange", "zero2"}}, "exchange = zero2 cannot be used"},
      {{{"parallel.exchange", "zero3"}}, "exchange = zero3 cannot be used"},
      {{{"parallel.pipeline", "2"}, {"parallel.exchange", "zero1"}},
       "every version of the weights would have to be gathered; use exchange = ddp"},
      {{{"parallel.schedule", "pipedream_2bw"}, {"train.global_batch", "2"}},
       "gives 2 micro-batches of 1 per step, but with schedule = pipedream_2bw and 4 stages 3 are in flight"},
      {{{"parallel.schedule", "1f1b"}},
       "clip_scope = stage is used with schedule = pipedream and pipedream_2bw"},
      {{{"parallel.schedule", "pipedream_2bw"}, {"parallel.vertical_sync", "true"}},
       "vertical_sync = true is used with schedule = pipedream only, not pipedream_2bw"},
      {{{"parallel.emulated_stages", "2"}},
       "emulated_stages = 2 needs schedule = pipedream or pipedream_2bw with"},
  };
  const auto with = [](Keys keys, const Keys& more) {
    for (const auto& [key, value] : more) set(keys, key, value);
    return keys;
  };
  const Keys common = {{"model.tied", "false"},
                       {"optim.clip_scope", "stage"},
                       {"train.global_batch", "8"},
                       {"train.micro_batch", "1"}};
  const Keys four = with(common, {{"parallel.pipeline", "4"}, {"parallel.schedule", "pipedream"}});
  EXPECT_THAT(configure_gpt2(four, 4).problems, IsEmpty());
  for (const Case& own : cases) {
    EXPECT_THAT(configure_gpt2(with(four, own.keys), 4).problems, testing::Contains(HasSubstr(own.problem)))
        << own.problem;
  }
  // Replicas of the stages.
  const Keys two = with(four, {{"parallel.pipeline", "2"}});
  const auto with_replicas = [&](const std::string& replicas, int ranks) {
    return configure_gpt2(with(two, {{"parallel.replicas", replicas}}), ranks);
  };
  EXPECT_THAT(with_replicas("2,1", 3).config.parallel.replicas, ElementsAre(2, 1));
  EXPECT_EQ(with_replicas("2,2", 4).config.parallel.data, 2);
  EXPECT_THAT(with_replicas("2,2", 4).config.parallel.replicas, IsEmpty());
  EXPECT_THAT(with_replicas("2,1", 4).problems, ElementsAre(HasSubstr("needs 3 ranks, but this run has 4")));
  EXPECT_THAT(
      with_replicas("3,1", 4).problems,
      ElementsAre(HasSubstr("8 micro-batches of 1 per step, which 3 replicas of a stage do not divide; "
                            "use global_batch = 6 or 9")));
  EXPECT_THAT(with_replicas("2,1,1", 4).problems,
              ElementsAre(HasSubstr("for each of the pipeline = 2 stages")));
  EXPECT_THAT(with_replicas("2,0", 2).problems, testing::Contains(HasSubstr("must be a number from 1 on")));
  // What the partitioner chooses.
  const auto chosen = [&](const Keys& more, int ranks = 4) {
    return configure_gpt2(with(four, with({{"parallel.replicas", "auto"}, {"parallel.pipeline", "0"}}, more)),
                          ranks);
  };
  const Result best = chosen({});
  EXPECT_THAT(best.problems, IsEmpty());
  EXPECT_EQ(best.config.parallel.pipeline, 1);  // without links, plain data parallelism has the shortest time
  EXPECT_EQ(best.config.parallel.data, 4);
  EXPECT_EQ(best.values.text("parallel.schedule"), "accumulate");
  EXPECT_EQ(best.values.text("optim.clip_scope"), "model");
  const Result in_three = chosen({{"parallel.pipeline", "3"}});
  EXPECT_THAT(in_three.problems, IsEmpty());
  EXPECT_THAT(in_three.config.parallel.replicas, ElementsAre(1, 1, 2));
  EXPECT_EQ(in_three.values.text("parallel.stages"), "4,4,4");
  const Result cut = chosen({{"parallel.stages", "10,2"}, {"parallel.tensor", "2"}}, 8);
  EXPECT_THAT(cut.problems, IsEmpty());
  EXPECT_EQ(cut.config.parallel.pipeline, 2);
  EXPECT_EQ(cut.config.parallel.data, 2);
  EXPECT_EQ(cut.values.text("parallel.stages"), "10,2");
  const Case refused[] = {
      {{{"parallel.replicas", ""}}, "pipeline = 0 chooses the number of stages together with"},
      {{{"parallel.schedule", "1f1b"}},
       "replicas = auto needs schedule = pipedream or pipedream_2bw, not 1f1b"},
      {{{"parallel.data", "2"}}, "and so would data = 2"},
      {{{"parallel.emulated_stages", "2"}}, "emulated_stages = 2 cannot be used with replicas = auto"},
      {{{"train.micro_batch", "0"}}, "replicas = auto needs [train] micro_batch"},
      {{{"parallel.tensor", "3"}}, "tensor = 3 must divide this run's 4 ranks"},
      {{{"parallel.stages", "10,1"}}, "stages = 10,1 must be auto, profile:PATH or the blocks of each stage"},
      {{{"parallel.stages", "6,6"}, {"parallel.pipeline", "3"}}, "stages = 6,6 must be auto"},
      {{{"parallel.stages", "profile:missing.csv"}}, "missing.csv"},
      {{{"parallel.pipeline", "5"}}, "pipeline = 5 needs a rank and a unit of the model for each stage"},
      {{{"machine.memory_gb", "0.1"}}, "finds no division within [machine] memory_gb = 0.1;"},
      {{{"train.global_batch", "7"}, {"parallel.pipeline", "3"}}, "4 groups of ranks cannot be divided"},
      {{{"model.tied", "true"}}, "tied = true cannot be used with"},
      {{{"model.heads", "5"}}, "heads = 5 must divide"},
  };
  for (const Case& own : refused)
    EXPECT_THAT(chosen(own.keys).problems, testing::Contains(HasSubstr(own.problem))) << own.problem;
  // One rank that emulates the stages cuts as they do, and refuses the same.
  for (const char* rule : {"pipedream", "pipedream_2bw"}) {
    const Keys divided = with(four, {{"parallel.schedule", rule}});
    const Keys alone = with(divided, {{"parallel.pipeline", "1"}, {"parallel.emulated_stages", "4"}});
    ASSERT_THAT(configure_gpt2(alone, 1).problems, IsEmpty());
    EXPECT_EQ(configure_gpt2(alone, 1).config.parallel.cuts, configure_gpt2(divided, 4).config.parallel.cuts);
    for (const Keys& more : {Keys{{"optim.clip_scope", "model"}}, Keys{{"model.tied", "true"}},
                             Keys{{"guard.spike_factor", "3"}}})
      EXPECT_THAT(configure_gpt2(with(alone, more), 1).problems, testing::SizeIs(1));
  }
}

TEST(RunConfig, RefusesPipelines) {
  struct Case {
    Keys keys;
    std::int64_t ranks;
    std::string problem;
  };
  const std::string file = scratch_file("two.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const auto with_file = [&](const Keys& more, const std::string& path) {
    Keys keys = {{"parallel.schedule", "file"}, {"parallel.schedule_file", path}};
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
  };
  const Keys interleaved = {{"parallel.schedule", "interleaved"}, {"parallel.chunks", "2"}};
  const auto with_interleaved = [&](const Keys& more) {
    Keys keys = interleaved;
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
  };
  const std::vector<Case> cases = {
      {{}, 6, "pipeline = 4 must divide this run's 6 ranks; use 3 or 6"},
      {{{"parallel.tensor", "2"}},
       6,
       "pipeline = 4 must divide this run's 6 ranks divided by tensor = 2; use 3"},
      {{{"parallel.data", "2"}}, 4, "data = 2 needs 8 ranks, but this run has 4; use data = 1, or 0 for all"},
      {{{"parallel.exchange", "zero2"}},
       4,
       "exchange = zero2 cannot be used with pipeline = 4: it would reduce gradients in every micro-batch; "
       "use "
       "exchange = zero1, or exchange = ddp"},
      {{{"parallel.exchange", "zero3"}, {"parallel.shard", "2"}},
       8,
       "it would gather weights and reduce gradients in every micro-batch; use exchange = zero1"},
      {{{"parallel.chunks", "2"}},
       4,
       "chunks = 2 cannot be used with schedule = 1f1b, whose stages have 1 chunk; use chunks = 1, or "
       "schedule "
       "= interleaved"},
      {{{"parallel.chunks", "3"}, {"parallel.schedule", "zero_bubble_v"}},
       4,
       "chunks = 3 cannot be used with schedule = zero_bubble_v, whose stages have 2 chunks; use chunks = 1, "
       "or "
       "schedule = interleaved"},
      {{{"parallel.chunks", "2"}, {"parallel.pipeline", "1"}},
       1,
       "chunks = 2 cannot be used with schedule = accumulate, whose stages have 1 chunk; use chunks = 1"},
      {with_interleaved({{"parallel.pipeline", "1"}}), 1,
       "schedule = interleaved needs several stages of several chunks, not pipeline = 1 and chunks = 2; use "
       "schedule = auto with chunks = 1"},
      {with_interleaved({{"parallel.pipeline", "1"}}), 4,
       "chunks = 2; use pipeline = 2 or 4, or schedule = auto"},
      {{{"parallel.schedule", "interleaved"}},
       4,
       "not pipeline = 4 and chunks = 1; use chunks = 2, or schedule"},
      {with_interleaved({{"train.global_batch", "6"}}), 4,
       "global_batch = 6 gives 6 micro-batches of 1 per step, but schedule = interleaved needs a multiple of "
       "[parallel] pipeline = 4; use global_batch = 4 or 8"},
      {with_interleaved({{"train.micro_batch", "0"}}), 4, "gives 1 micro-batch of 8 per step"},
      {with_interleaved({{"train.micro_batch", "0"}}), 4, "pipeline = 4; use micro_batch = 1 or 2"},
      {with_interleaved({{"train.micro_batch", "0"}, {"train.global_batch", "2"}}), 4,
       "use global_batch = 4 with micro_batch = 1"},
      {{{"parallel.chunks", "4"}, {"parallel.schedule", "interleaved"}},
       4,
       "pipeline = 4 makes 16 chunks, but [model] layers = 12 fills at most 14, the embedding and the head "
       "alone included; use chunks = 3, or pipeline = 2"},
      {{{"parallel.pipeline", "15"}, {"train.global_batch", "15"}},
       15,
       "pipeline = 15 makes 15 chunks, but [model] layers = 12 fills at most 14, the embedding and the head "
       "alone included; use pipeline = 1, 3 or 5"},
      {{{"parallel.pipeline", "17"}, {"train.global_batch", "8"}}, 17, "use [model] layers = 15 or more"},
      {{{"parallel.stages", "4,4,4"}},
       4,
       "stages = 4,4,4 has 3 numbers, but there are 4 chunks: pipeline = 4 with 1 each; use auto, or such as "
       "3,3,3,3"},
      {{{"parallel.stages", "4,4,4,1"}},
       4,
       "stages = 4,4,4,1 has 13 blocks, but [model] layers = 12; use auto"},
      {{{"parallel.stages", "6,0,3,3"}},
       4,
       "stages = 6,0,3,3 leaves a chunk without blocks that is neither the first nor the last; use auto, or "
       "such "
       "as 3,3,3,3"},
      {{{"parallel.stages", "six"}},
       4,
       "stages = six must be auto, profile:PATH or the blocks of each chunk"},
      {{{"parallel.stages", "profile:"}}, 4, "stages = profile: must be auto, profile:PATH or the blocks"},
      {{{"parallel.stages", "1,1"}, {"model.layers", "2"}},
       4,
       "pipeline = 4 with 1 each; use auto, or such as 0,1,1,0"},
      {{{"parallel.stages", "1,1"}, {"model.layers", "3"}}, 4, "use auto, or such as 1,1,1,0"},
      {{{"parallel.schedule", "file"}},
       4,
       "schedule = file needs a schedule_file; name one, or use schedule = auto"},
      {{{"parallel.schedule_file", file}},
       4,
       "is used with schedule = file only; use schedule = file, or leave"},
      {with_file({}, "none.csv"), 4, "schedule_file = none.csv: cannot open none.csv"},
      {with_file({{"parallel.pipeline", "2"}}, file), 2,
       "two.csv is for pipeline x chunks = 2 x 1 chunks and 2 micro-batches, but the deck has 2 x 1 chunks "
       "and 8 "
       "micro-batches; use global_batch = 2"},
      {with_file({}, file), 4, "use pipeline = 2, global_batch = 4"},
      {with_file({{"train.micro_batch", "0"}}, file), 4, "use pipeline = 2, micro_batch = 2"},
      {with_file({}, scratch_file("three.csv", "0F0,0B0\n1F0,1B0\n2F0,2B0\n")), 4,
       "; use pipeline = 3 with a multiple of 3 ranks"},
      {with_file({}, scratch_file("doubled.csv", "0F0,0F0,0B0\n")), 4,
       "row 1, cell 2: 0F0 is in cell 1 already"},
      {with_file({}, scratch_file("uneven.csv", "0F0,1F0,1B0,0B0\n2F0,2B0\n")), 4,
       "row 2 has 1 chunks, but row 1 has 2"},
  };
  for (const auto& [keys, ranks, problem] : cases) {
    EXPECT_THAT(configure_gpt2(staged(keys), ranks, ranks).problems, ElementsAre(HasSubstr(problem)));
  }
}

/// The values that a message advises: "use chunks = 2 or 3, or pipeline = 2".
Keys advised(const std::string& message) {
  const std::size_t begin = message.rfind("; use ");
  if (begin == std::string::npos || message.find(" with ", begin) != std::string::npos) return {};
  Keys keys;
  // The key that is advised on if none is named: "[parallel] pipeline = 4 must divide ...".
  std::string name = "pipeline";
  std::istringstream words(message.substr(begin + 6));
  std::vector<std::string> all;
  for (std::string word; words >> word;) {
    word.erase(std::remove(word.begin(), word.end(), ','), word.end());
    all.push_back(word);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i + 1 < all.size() && all[i + 1] == "=") {
      name = all[i++];
    } else if (all[i] != "or" && all[i] != "more" && all[i] != "[model]") {
      const bool is_of_batch = name.ends_with("_batch");
      keys.emplace_back((is_of_batch ? "train." : name == "layers" ? "model." : "parallel.") + name, all[i]);
    }
  }
  return keys;
}

/// Whatever a message advises for a deck with one problem is a deck without problems.
TEST(RunConfig, AdvisesOnPipelinesWhatWorks) {
  int tried = 0;
  for (const std::int64_t ranks : {1, 2, 3, 4, 6, 8, 12, 15}) {
    for (const char* schedule : {"auto", "gpipe", "interleaved", "zero_bubble_v"}) {
      for (const char* pipeline : {"1", "2", "3", "4", "6", "8", "15"}) {
        for (const char* chunks : {"1", "2", "7"}) {
          for (const char* batch : {"6", "8", "24"}) {
            for (const char* micro : {"0", "1", "2"}) {
              const Keys keys = {{"parallel.pipeline", pipeline},
                                 {"parallel.schedule", schedule},
                                 {"parallel.chunks", chunks},
                                 {"train.global_batch", batch},
                                 {"train.micro_batch", micro},
                                 {"parallel.stages", "profile:none"},
                                 {"model.layers", "6"}};
              // The profile does not exist, which is found last; so no cut is chosen.
              const Result result = configure_gpt2(keys, ranks, ranks);
              if (result.problems.size() != 1 || result.problems[0].find("none") != std::string::npos)
                continue;
              if (result.problems[0].find("[train] global_batch") != std::string::npos &&
                  result.problems[0].find("interleaved") == std::string::npos)
                continue;
              for (const auto& [key, value] : advised(result.problems[0])) {
                Keys other = keys;
                set(other, key, value);
                ++tried;
                EXPECT_THAT(configure_gpt2(other, ranks, ranks).problems,
                            ElementsAre(HasSubstr("none: cannot open")))
                    << result.problems[0] << ": " << key << " = " << value;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(tried, 500);
}

TEST(RunConfig, SaysThatOneForwardOneBackwardDoesNotUseInFlight) {
  const auto idle = [](const char* schedule) {
    return idle_settings(
        configure_gpt2(staged({{"parallel.in_flight", "3"}, {"parallel.schedule", schedule}}), 4).config);
  };
  EXPECT_THAT(idle("auto"), ElementsAre("[parallel] in_flight = 3 with schedule = 1f1b: it is not used"));
  EXPECT_THAT(idle("zero_bubble"), IsEmpty());
}

TEST(RunConfig, DividesAmongTheRanksOfANode) {
  const auto result = [](std::int64_t ranks_per_node) {
    return configure_gpt2({{"parallel.exchange", "zero3"}, {"parallel.shard", "node"}}, 8, ranks_per_node);
  };
  EXPECT_EQ(result(2).config.parallel.shard, 2);
  EXPECT_EQ(result(8).config.parallel.shard, 8);
  EXPECT_EQ(result(2).values.text("parallel.shard"), "2");
  EXPECT_THAT(result(0).problems,
              ElementsAre(HasSubstr("shard = node needs the same number of ranks on every node")));
  EXPECT_THAT(result(1).problems, ElementsAre(HasSubstr("shard = 1 does not divide data = 8")));
  EXPECT_THAT(configure_gpt2({{"parallel.exchange", "zero3"}, {"parallel.shard", "node"}}).problems,
              IsEmpty());
  // Both stages have two of a node's four ranks.
  const Keys stages = {
      {"parallel.exchange", "zero1"}, {"parallel.shard", "node"}, {"parallel.pipeline", "2"}};
  EXPECT_EQ(configure_gpt2(stages, 4, 4).config.parallel.shard, 2);
}

TEST(RunConfig, ChecksTokenFilesSeparately) {
  DeckErrors errors;
  ParamValues values;
  const Deck deck = Deck::parse(
      "[model]\npreset = gpt2-124m\n[train]\nsteps = 1\nglobal_batch = 1\n[data]\ntrain = no_such.bin\nvalid "
      "= .\n"
      "[run]\ndir = runs/test\n",
      "run.deck", errors);
  const RunConfig config = make_run_config(deck, deck_params(), {1}, errors, values);
  EXPECT_TRUE(errors.empty());
  check_token_files(deck, config, errors);
  EXPECT_THAT(errors.messages(), ElementsAre("run.deck:7: [data] train = no_such.bin does not exist",
                                             "run.deck:8: [data] valid = . is not a file that can be read: "
                                             "there is a folder"));
}

/// Radford et al., 2019, table 2; the numbers of heads are those of the released models.
TEST(RunConfig, PresetsAreThePublishedModels) {
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> presets = {
      {"gpt2-124m", {12, 12, 768}},
      {"gpt2-355m", {24, 16, 1024}},
      {"gpt2-774m", {36, 20, 1280}},
      {"gpt2-1558m", {48, 25, 1600}}};
  for (const auto& [name, shape] : presets) {
    const Result result = configure_gpt2({{"model.preset", name}});
    EXPECT_THAT(result.problems, IsEmpty());
    const ModelConfig& model = result.config.model;
    EXPECT_EQ((std::vector<std::int64_t>{model.layers, model.heads, model.width}), shape) << name;
    EXPECT_EQ(model.context, 1024) << name;
    EXPECT_EQ(model.vocab, 50257) << name;
  }
}

/// No two of the numbers that are checked in one struct are equal, so that a value in the wrong place is
/// found.
TEST(RunConfig, TakesEachParameterToItsPlace) {
  const Result result = configure_gpt2({{"model.vocab_multiple", "64"},
                                        {"model.dropout", "0.25"},
                                        {"model.tied", "false"},
                                        {"train.seed", "31"},
                                        {"train.stop_step", "32"},
                                        {"train.wall_clock", "33"},
                                        {"train.end_time", "56"},
                                        {"train.end_margin", "57"},
                                        {"train.dtype", "fp16"},
                                        {"train.loss_scale", "34"},
                                        {"train.loss_scale_window", "35"},
                                        {"train.recompute", "selective"},
                                        {"optim.lr", "0.5"},
                                        {"optim.min_lr", "0.125"},
                                        {"optim.schedule", "wsd"},
                                        {"optim.warmup", "36"},
                                        {"optim.decay_steps", "37"},
                                        {"optim.weight_decay", "0.75"},
                                        {"optim.clip_norm", "1.5"},
                                        {"data.valid", "valid.bin"},
                                        {"eval.every", "38"},
                                        {"eval.batches", "39"},
                                        {"eval.choices", "choices.jsonl"},
                                        {"eval.choices_style", "harness"},
                                        {"eval.choices_limit", "58"},
                                        {"guard.policy", "stop"},
                                        {"guard.max_skips", "40"},
                                        {"guard.spike_factor", "41"},
                                        {"guard.spike_window", "42"},
                                        {"guard.replica_check_every", "43"},
                                        {"checkpoint.every", "44"},
                                        {"checkpoint.async", "true"},
                                        {"checkpoint.dir", "elsewhere"},
                                        {"checkpoint.keep", "45"},
                                        {"checkpoint.keep_every", "46"},
                                        {"checkpoint.keep_abandoned", "47"},
                                        {"checkpoint.alignment", "48"},
                                        {"backend.compute", "one"},
                                        {"backend.comm", "another"},
                                        {"backend.threads", "49"},
                                        {"comm.algorithm", "ring"},
                                        {"comm.progress_thread", "true"},
                                        {"comm.simulate_alpha", "50"},
                                        {"comm.simulate_gbps", "51"},
                                        {"comm.timeout", "52"},
                                        {"comm.heartbeat", "53"},
                                        {"io.timeout", "54"},
                                        {"profile.step", "54"},
                                        {"machine.peak_tflops", "55"}});
  ASSERT_THAT(result.problems, IsEmpty());
  const RunConfig& run = result.config;
  EXPECT_EQ(run.model.vocab_multiple, 64);
  EXPECT_EQ(run.model.dropout, 0.25F);
  EXPECT_FALSE(run.model.tied);
  EXPECT_EQ(run.train.seed, 31U);
  EXPECT_EQ(run.optimizer.seed, 31U);
  EXPECT_EQ(run.limits.steps, 100);
  EXPECT_EQ(run.limits.stop_step, 32);
  EXPECT_EQ(run.limits.wall_clock, 33.0);
  EXPECT_EQ(run.limits.end_time, 56);
  EXPECT_EQ(run.limits.end_margin, 57.0);
  EXPECT_EQ(run.train.dtype, DType::fp16);
  EXPECT_EQ(run.train.loss_scale, 34.0F);
  EXPECT_EQ(run.guard.scale_window, 35);
  EXPECT_EQ(run.train.recompute, Recompute::selective);
  EXPECT_EQ(run.lr.peak, 0.5);
  EXPECT_EQ(run.lr.min, 0.125);
  EXPECT_EQ(run.lr.decay, LrDecay::wsd);
  EXPECT_EQ(run.lr.warmup, 36);
  EXPECT_EQ(run.lr.steps, 100);
  EXPECT_EQ(run.lr.decay_steps, 37);
  EXPECT_EQ(run.optimizer.weight_decay, 0.75F);
  EXPECT_EQ(run.guard.clip_norm, 1.5F);
  EXPECT_EQ(run.data.train.at(0).text, "tokens.bin");
  EXPECT_EQ(run.data.valid.at(0).text, "valid.bin");
  EXPECT_EQ(run.eval.every, 38);
  EXPECT_EQ(run.eval.batches, 39);
  EXPECT_EQ(run.eval.choices, "choices.jsonl");
  EXPECT_EQ(run.eval.choices_style, ChoiceStyle::harness);
  EXPECT_EQ(run.eval.choices_limit, 58);
  EXPECT_EQ(run.guard_settings.policy, GuardPolicy::stop);
  EXPECT_EQ(run.guard_settings.max_skips, 40);
  EXPECT_EQ(run.guard.spike_factor, 41.0F);
  EXPECT_EQ(run.guard.spike_window, 42);
  EXPECT_EQ(run.guard_settings.replica_check_every, 43);
  EXPECT_EQ(run.checkpoint.every, 44);
  EXPECT_TRUE(run.checkpoint.async);
  EXPECT_EQ(run.checkpoint.directory, "elsewhere");
  EXPECT_EQ(run.checkpoint.settings.retention.keep, 45);
  EXPECT_EQ(run.checkpoint.settings.retention.keep_every, 46);
  EXPECT_EQ(run.checkpoint.settings.retention.keep_abandoned, 47);
  EXPECT_EQ(run.checkpoint.settings.alignment, 48);
  EXPECT_EQ(run.backend.compute, "one");
  EXPECT_EQ(run.backend.comm, "another");
  EXPECT_EQ(run.backend.threads, 49);
  EXPECT_EQ(run.comm.algorithm, "ring");
  EXPECT_TRUE(run.comm.progress_thread);
  ASSERT_TRUE(run.comm.simulated_link);
  EXPECT_DOUBLE_EQ(run.comm.simulated_link->latency, 50e-6);
  EXPECT_EQ(run.comm.simulated_link->gigabits_per_second, 51.0);
  EXPECT_EQ(run.comm.limits.operation_timeout.count(), 52000);
  EXPECT_EQ(run.comm.limits.silence.count(), 53000);
  EXPECT_EQ(run.comm.limits.io_timeout.count(), 54000);
  EXPECT_EQ(run.profile_step, 54);
  EXPECT_EQ(run.peak_tflops, 55.0);
  EXPECT_EQ(run.run_dir, "runs/test");
}

/// The changes as a restart would name them, of mylos' own keys and those of a plugin.
std::string changes_of(const std::string& before, const std::string& now) {
  std::vector<ParamSpec> specs(deck_params().begin(), deck_params().end());
  specs.push_back(boolean_param("backend", "autotune", "false", "").changes(Effect::measured));
  return text_of(deck_changes(before, now, specs));
}

TEST(DeckChanges, AreTheKeysThatAffectTheResults) {
  const std::string before = "[train]\nsteps = 5\nseed = 1\n[run]\ndir = a\n";
  EXPECT_EQ(changes_of(before, "[train]\nsteps = 6\nseed = 2\n[run]\ndir = b\n"),
            "train.steps 5 -> 6, train.seed 1 -> 2");
  // Keys that mylos did not have when the older deck was resolved.
  EXPECT_EQ(changes_of(before, before + "[optim]\nmaster = fp32\n"), "");
  EXPECT_EQ(changes_of(before, before + "[optim]\nmaster = none\n"), "optim.master fp32 -> none");
  EXPECT_EQ(changes_of(before, before + "[optim]\nepsilon = 1e-08\n"), "");  // the default is written 1e-8
  EXPECT_EQ(changes_of(before, before + "[model]\ninit = gone\n[eval]\nchoices = c.jsonl\n"), "");
  EXPECT_EQ(changes_of(before, before + "[plugin]\nkey = 1\n"), "plugin.key nothing -> 1");
  const std::string tuned = before + "[backend]\nautotune = true\n";
  EXPECT_EQ(changes_of(tuned, tuned), "backend.autotune true -> true");  // measured again
  const std::string untuned = before + "[backend]\nautotune = false\n";
  EXPECT_EQ(changes_of(tuned, untuned), "backend.autotune true -> false");
  EXPECT_EQ(changes_of(before, untuned), "");
  EXPECT_EQ(changes_of(before, before + "[guard]\npolicy = stop\nspike_factor = 8\nspike_window = 4\n"
                                        "replica_check_every = 5\n"),
            "guard.policy skip -> stop, guard.spike_factor 0 -> 8, guard.spike_window 100 -> 4");
}

TEST(InputDecks, AreValid) {
  const std::vector<std::filesystem::path> decks = decks_in("inputs");
  EXPECT_GE(decks.size(), 6U);
  for (const std::filesystem::path& file : decks) {
    DeckErrors ignored;
    const Deck deck = Deck::parse(contents(file), file.filename().string(), ignored);
    std::int64_t least = 1;  // ranks
    for (const char* key : {"parallel.tensor", "parallel.pipeline"}) {
      if (const DeckEntry* entry = deck.find(key)) least *= std::stoll(entry->value);
    }
    for (const std::int64_t ranks : {least, 2 * least, 4 * least}) {
      const Result result = configure(contents(file), ranks, file.filename().string());
      EXPECT_THAT(result.problems, IsEmpty()) << ranks << " ranks";
    }
  }
}

/// The costs of units are those of the machine; what the deck says itself wins over the file.
TEST(MachineFile, CutsTheModelByItsTimes) {
  const auto file = [](const char* name, const char* attention) {
    return scratch_file(name, fmt::format("[machine]\nname = m\n[device]\nbandwidth = 1e6\npeak_fp32 = 1\n"
                                          "attention_share = \"64 {}\"\n",
                                          attention));
  };
  const auto configured = [](const std::string& path, const Keys& more = {}) {
    Keys keys = {{"parallel.pipeline", "2"}, {"train.micro_batch", "1"}, {"machine.file", path}};
    keys.insert(keys.end(), more.begin(), more.end());
    return configure_gpt2(keys, 2);
  };
  const std::string fast = file("fast.machine", "1");
  const Result quick = configured(fast, {{"machine.peak_tflops", "4"}, {"machine.node_gbps", "8"}});
  ASSERT_THAT(quick.problems, IsEmpty());
  EXPECT_EQ(quick.config.time_unit, TimeUnit::seconds);
  EXPECT_EQ(quick.config.machine_file->peak[0], 4e12);
  EXPECT_EQ(quick.config.machine_file->node_bandwidth, 1e9);
  // If blocks cost little but attention, which the head has none of, both stages have as many.
  const Result slow = configured(file("slow.machine", "0.0001"));
  ASSERT_THAT(slow.problems, IsEmpty());
  EXPECT_THAT(slow.config.parallel.cuts, ElementsAre(7));
  EXPECT_GT(quick.config.parallel.cuts.front(), 7);
  EXPECT_THAT(
      configured(scratch_file("bad.machine", "[machine]\nname = m\n[device]\nbandwith = 1\n")).problems,
      ElementsAre(HasSubstr("bad.machine:4: unknown key [device] bandwith")));
}

/// Every expected line is part of a message, and there are as many messages as lines: problems that only
/// follow from another problem are not reported.
TEST(BadDecks, AreReportedInFull) {
  const std::vector<std::filesystem::path> decks = decks_in("tests/decks_bad");
  EXPECT_GE(decks.size(), 10U);
  for (std::filesystem::path file : decks) {
    SCOPED_TRACE(file);
    const std::vector<std::string> problems = configure(contents(file), 2, file.filename().string()).problems;
    std::istringstream expected(contents(file.replace_extension(".expected")));
    std::size_t lines = 0;
    for (std::string line; std::getline(expected, line); ++lines) {
      EXPECT_THAT(problems, testing::Contains(HasSubstr(line)));
    }
    EXPECT_EQ(problems.size(), lines) << testing::PrintToString(problems);
  }
}

}  // namespace
}  // namespace mylos
