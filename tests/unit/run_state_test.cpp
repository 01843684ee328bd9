// SPDX-License-Identifier: BSD-3-Clause
// state.json: read back as it was written, and refused with the place and the key if a required value is
// missing.
#include "app/train/run_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/deck/deck_changes.hpp"
#include "core/base/error.hpp"

namespace mylos {
namespace {

/// A state in which no two numbers are the same.
RunState some_state() {
  RunState state;
  state.step = 7;
  state.sample = 84;
  state.read = {.tokens = 3360, .sources = {{"100 tokens, 89ab", 1.5}, {"200 tokens, cdef", 0.1}}};
  state.seed = 5;
  state.model.layers = 2;
  state.model.heads = 3;
  state.model.width = 48;
  state.model.feed_forward = 120;
  state.model.context = 40;
  state.model.vocab = 257;
  state.model.tied = false;
  state.guard.mean = 0.1;
  state.guard.variance = 0.25;
  state.guard.seen = 11;
  state.guard.skipped = 12;
  state.guard.skipped_in_row = 13;
  state.guard.loss_scale = 8192.0F;
  state.guard.scaled_in_row = 14;
  state.ranks = 15;
  state.micro_batch = 16;
  state.compute = "a backend";
  state.deck = "[train]\n";
  state.code = "0.0.1 (of another commit)";
  state.ranks_per_node = 4;
  state.train_data = "1000 tokens, 0123";
  state.tokenizer = {.name = "gpt2", .ranks = "4567"};
  state.initial = {.path = "a/model", .kind = "Hugging Face folder", .digest = "0123456789abcdef"};
  state.evaluation_due = true;
  return state;
}

std::string error_of(const std::string& text) {
  try {
    parse_state(text, "here", 7);
    return "good";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
}

TEST(RunState, IsReadBackAsItWasWritten) {
  const std::string text = state_text(some_state());
  const RunState read = parse_state(text, "here", 7);
  EXPECT_EQ(state_text(read), text);
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.sample, 84);
  EXPECT_EQ(read.read.tokens, 3360);
  ASSERT_EQ(read.read.sources.size(), 2U);
  EXPECT_EQ(read.read.sources[1].content, "200 tokens, cdef");
  EXPECT_EQ(read.read.sources[1].epochs, 0.1);
  EXPECT_EQ(read.seed, 5U);
  EXPECT_EQ(read.ranks, 15);
  EXPECT_EQ(read.micro_batch, 16);
  EXPECT_EQ(read.guard.mean, 0.1);
  EXPECT_EQ(read.guard.variance, 0.25);
  EXPECT_EQ(read.guard.seen, 11);
  EXPECT_EQ(read.guard.skipped, 12);
  EXPECT_EQ(read.guard.skipped_in_row, 13);
  EXPECT_EQ(read.guard.scaled_in_row, 14);
  EXPECT_EQ(read.guard.loss_scale, 8192.0F);
  EXPECT_EQ(read.model.layers, 2);
  EXPECT_EQ(read.model.heads, 3);
  EXPECT_EQ(read.model.width, 48);
  EXPECT_EQ(read.model.feed_forward, 120);
  EXPECT_EQ(read.model.context, 40);
  EXPECT_EQ(read.model.vocab, 257);
  EXPECT_FALSE(read.model.tied);
  EXPECT_EQ(read.compute, "a backend");
  EXPECT_EQ(read.code, "0.0.1 (of another commit)");
  EXPECT_EQ(read.ranks_per_node, 4);
  EXPECT_EQ(read.train_data, "1000 tokens, 0123");
  EXPECT_EQ(read.tokenizer.text(), "gpt2 (ranks 4567)");
  ASSERT_TRUE(read.initial);
  EXPECT_EQ(read.initial->text(), "a/model (Hugging Face folder), digest 0123456789abcdef");
  EXPECT_TRUE(read.evaluation_due);
}

/// Those of older checkpoints have four times the width.
TEST(RunState, HasTheWidthOfFeedForwardLayers) {
  RunState state = some_state();
  std::string text = state_text(state);
  text.replace(text.find("\"feed_forward\""), 14, "\"another\"");
  const RunState older = parse_state(text, "here", 7);
  EXPECT_EQ(older.model.inner_width(), 192);
  RunConfig config;
  config.model = older.model;
  config.model.feed_forward = 192;  // as resolved
  config.limits.steps = 100;
  EXPECT_NO_THROW(check_continues(older, config));
  EXPECT_TRUE(
      deck_changes("[model]\nwidth = 48\n", "[model]\nwidth = 48\nfeed_forward = 192\n", deck_params())
          .empty());
  try {
    check_continues(state, config);
    ADD_FAILURE() << "another model";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("width 48, feed-forward 120, context 40"));
    EXPECT_THAT(error.what(), testing::HasSubstr("the deck asks for layers 2, heads 3, width 48, context"));
  }
  state.model.feed_forward = 4194305;
  EXPECT_THAT(error_of(state_text(state)), testing::HasSubstr("a feed-forward layer of width 4194305"));
}

/// Checkpoints from before there were experts have none.
TEST(RunState, KeepsExperts) {
  RunState state = some_state();
  state.model.experts = {.count = 6,
                         .per_token = 3,
                         .width = 24,
                         .every = 2,
                         .has_shared = true,
                         .router = RouterKind::softmax_topk,
                         .noise = RouterNoise::Kind::learned};
  std::string text = state_text(state);
  EXPECT_EQ(experts_text(parse_state(text, "here", 7).model.experts), experts_text(state.model.experts));
  text.replace(text.find("\"experts\""), 9, "\"another\"");
  EXPECT_EQ(parse_state(text, "here", 7).model.experts.count, 0);
  state.model.experts.every = 0;
  EXPECT_THAT(error_of(state_text(state)), testing::HasSubstr("a model cannot have 6 experts"));
  state.model.experts.every = 1;
  state.model.experts.per_token = 7;
  EXPECT_THAT(error_of(state_text(state)), testing::HasSubstr("7 per token"));
}

TEST(RunState, KeepsDepths) {
  RunState state = some_state();
  state.model.depths = {.capacity = 0.1, .every = 3};
  std::string text = state_text(state);
  EXPECT_EQ(parse_state(text, "here", 7).model.depths.capacity, 0.1);
  EXPECT_EQ(parse_state(text, "here", 7).model.depths.every, 3);
  text.replace(text.find("\"depths\""), 8, "\"others\"");
  EXPECT_EQ(parse_state(text, "here", 7).model.depths.capacity, 0.0);
  for (const DepthConfig& wrong :
       {DepthConfig{.capacity = 1.5, .every = 1}, DepthConfig{.capacity = -0.5, .every = 1},
        DepthConfig{.capacity = 0.5, .every = 0}}) {
    state.model.depths = wrong;
    EXPECT_THAT(error_of(state_text(state)), testing::HasSubstr("a model cannot have"));
  }
}

TEST(RunState, IsRefusedIfItIsOfAnotherStep) {
  std::string text = state_text(some_state());
  text.replace(text.find("\"step\": 7"), 9, "\"step\": 8");
  EXPECT_EQ(error_of(text), "here: of step 8, not 7");
}

/// Of random weights, and in older checkpoints, which have no such key.
TEST(RunState, MayHaveNoInitialWeights) {
  RunState state = some_state();
  std::string text = state_text(state);
  text.replace(text.find("\"initial\""), 9, "\"another\"");
  EXPECT_FALSE(parse_state(text, "here", 7).initial);
  state.initial.reset();
  text = state_text(state);
  EXPECT_FALSE(parse_state(text, "here", 7).initial);
  EXPECT_EQ(state_text(parse_state(text, "here", 7)), text);
}

TEST(RunState, NamesWhatInitialWeightsLack) {
  std::string text = state_text(some_state());
  text.replace(text.find("\"digest\""), 8, "\"dijest\"");
  EXPECT_EQ(error_of(text), "here: has no \"digest\"");
}

TEST(RunState, TokenizersMayBeTheSameUnlessTheyAreKnownToDiffer) {
  const TokenizerIdentity bytes{.name = "bytes", .ranks = ""};
  const TokenizerIdentity one{.name = "gpt2", .ranks = "0123"};
  EXPECT_TRUE(may_be_same(one, one));
  EXPECT_TRUE(may_be_same(one, {.name = "gpt2", .ranks = ""}));
  EXPECT_TRUE(may_be_same({}, one));
  EXPECT_TRUE(may_be_same(bytes, {}));
  EXPECT_FALSE(may_be_same(one, {.name = "gpt2", .ranks = "4567"}));
  EXPECT_FALSE(may_be_same(bytes, one));
}

TEST(RunState, AcceptsOlderRunsWithoutALossScale) {
  std::string text = state_text(some_state());
  text.replace(text.find("loss_scale"), 4, "gone");
  text.replace(text.find("scaled_in_row"), 4, "gone");
  const RunState read = parse_state(text, "here", 7);
  EXPECT_EQ(read.guard.loss_scale, 1.0F);
  EXPECT_EQ(read.guard.scaled_in_row, 0);
}

TEST(RunState, CountsTheTokensOfOlderRunsWithTheirOwnLengthOfSamples) {
  RunState state = some_state();
  state.deck = "[train]\nseq_len = 40\n";
  std::string text = state_text(state);
  text.replace(text.find("\"read\""), 6, "\"gone\"");
  const RunState read = parse_state(text, "here", 7);
  EXPECT_EQ(read.read.tokens, 84 * 40);
  EXPECT_TRUE(read.read.sources.empty());
}

TEST(RunState, NamesMissingKeys) {
  std::string text = state_text(some_state());
  text.replace(text.find("skipped_in_row"), 7, "omitted");
  EXPECT_EQ(error_of(text), "here: has no \"skipped_in_row\"");
  EXPECT_THAT(error_of(text.substr(0, 100)), testing::StartsWith("here: "));
  EXPECT_EQ(error_of("[]"), "here: has no \"step\"");
}

}  // namespace
}  // namespace mylos
