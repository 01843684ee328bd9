// SPDX-License-Identifier: BSD-3-Clause
// The files of `mylos generate`: prompts with every kind of error, and the lines of what was generated.
#include "app/inference/prompts.hpp"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "io/json.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Ids = std::vector<std::int32_t>;

constexpr PromptRules all_prompts = {.vocab_size = 100, .takes_text = true};

std::string prompts_error(const std::string& text, const PromptRules& rules = all_prompts) {
  try {
    parse_prompts(text, "p.jsonl", rules);
    return "good";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
}

TEST(Prompts, AreTextsOrTokens) {
  const auto prompts = parse_prompts(
      "\xef\xbb\xbf{\"prompt\": \"To be\"}\r\n"
      "\n"
      "  {\"tokens\": [0, 99, 7], \"name\": \"ids\"}\n"
      "{\"prompt\": \"\"}\n \t\n"
      "{\"prompt\": {\"latin1\": \"\\u00ff\"}}\n"
      "{\"prompt\": \"\\u20ac\\n\"}",
      "p.jsonl", all_prompts);
  EXPECT_THAT(prompts, ElementsAre(Prompt("To be"), Prompt(Ids{0, 99, 7}), Prompt(""), Prompt("\xff"),
                                   Prompt("\xe2\x82\xac\n")));
}

TEST(Prompts, ErrorsNameTheLine) {
  const std::string good = "{\"prompt\": \"a\"}\n\n";
  EXPECT_EQ(prompts_error(good + "{\"text\": \"a\"}\n"), "p.jsonl:3: has neither \"prompt\" nor \"tokens\"");
  EXPECT_EQ(prompts_error(good + "{\"prompt\": \"a\", \"tokens\": [1]}"),
            "p.jsonl:3: has both \"prompt\" and \"tokens\"");
  for (const char* line : {"[1, 2]", "\"a\"", "3", "null"})
    EXPECT_EQ(prompts_error(good + line), "p.jsonl:3: is not a JSON object with \"prompt\" or \"tokens\"");
  EXPECT_EQ(prompts_error(good + "{\"prompt\": 3}"), "p.jsonl:3: \"prompt\" is not text");
  EXPECT_EQ(prompts_error(good + "{\"prompt\": null}"), "p.jsonl:3: \"prompt\" is not text");
  EXPECT_EQ(prompts_error(good + "{\"tokens\": \"1 2\"}"), "p.jsonl:3: \"tokens\" is not an array");
  for (const char* ids : {"[1, 2.0]", "[\"1\"]", "[null]", "[[1]]"})
    EXPECT_EQ(prompts_error(good + "{\"tokens\": " + ids + "}"),
              "p.jsonl:3: \"tokens\" does not hold integers");
  EXPECT_EQ(prompts_error(good + "{\"tokens\": []}"),
            "p.jsonl:3: \"tokens\" is empty: there is nothing to continue");
  EXPECT_THAT(prompts_error(good + "{\"prompt\": \"a\""), StartsWith("p.jsonl:3: "));
  EXPECT_THAT(prompts_error(good + "{\"prompt\": \"a\"} {}"), StartsWith("p.jsonl:3: "));
  EXPECT_THAT(prompts_error(good + std::string(100, '[')), HasSubstr("nested deeper than 64 levels"));
}

TEST(Prompts, RefusesIdsOutsideTheVocabulary) {
  EXPECT_EQ(prompts_error("{\"tokens\": [5, 100]}"),
            "p.jsonl:1: \"tokens\" has the id 100 at index 1; the model's are 0 to 99");
  for (const char* id : {"-1", "4294967296", "9223372036854775807", "18446744073709551615"})
    EXPECT_EQ(prompts_error(std::string("{\"tokens\": [") + id + "]}"),
              std::string("p.jsonl:1: \"tokens\" has the id ") + id + " at index 0; the model's are 0 to 99");
}

TEST(Prompts, ModelsWithoutATokenizerTakeOnlyTokens) {
  constexpr PromptRules only_tokens = {.vocab_size = 100, .takes_text = false};
  EXPECT_EQ(prompts_error("{\"tokens\": [5]}", only_tokens), "good");
  EXPECT_EQ(prompts_error("{\"tokens\": [5]}\n{\"prompt\": \"\"}", only_tokens),
            "p.jsonl:2: \"prompt\" is a text, but the model has no known tokenizer; give \"tokens\"");
}

TEST(Prompts, RefusesWhatIsNoTextInUtf8) {
  EXPECT_EQ(prompts_error(""), "p.jsonl has no prompts");
  EXPECT_EQ(prompts_error("\n \r\n"), "p.jsonl has no prompts");
  EXPECT_EQ(prompts_error("\x1f\x8b\x08\x01\x02"), "p.jsonl is gzip data, not JSON lines in UTF-8");
  EXPECT_THAT(prompts_error("{\"prompt\": \"a\"}\n{\"prompt\": \"a \xe9 b\"}\n"),
              testing::AllOf(StartsWith("p.jsonl:2: "), HasSubstr("UTF-8")));
}

TEST(Prompts, BoundsTheLength) {
  const auto line = [](std::size_t bytes) { return "{\"prompt\":\"" + std::string(bytes - 13, 'a') + "\"}"; };
  EXPECT_EQ(prompts_error(line(most_prompt_line_bytes) + "\n"), "good");
  EXPECT_EQ(prompts_error("\n" + line(most_prompt_line_bytes + 1)),
            "p.jsonl:2: the line has 4194305 bytes, more than 4194304");
}

TEST(Completions, AreLinesOfJson) {
  const Completion completion = {.prompt = 3,
                                 .sample = 1,
                                 .text = "a \"b\"\n\xe2\x82\xac",
                                 .tokens = {64, 5, 50256},
                                 .logprobs = {-0.1F, -12.345678F, 0.0F},
                                 .finish = Finish::end};
  EXPECT_EQ(completion_line(completion),
            "{\"finish\":\"end\",\"logprobs\":[-0.1,-12.345678,0.0],\"prompt\":3,\"sample\":1,"
            "\"text\":\"a \\\"b\\\"\\n\xe2\x82\xac\",\"tokens\":[64,5,50256]}\n");
}

TEST(Completions, NumbersRoundTrip) {
  Completion completion;
  for (const float value : {1.0F / 3, 1e-40F, 16777216.0F, 0.1F, std::numeric_limits<float>::max()}) {
    completion.logprobs.push_back(-value);
    completion.logprobs.push_back(-std::nextafter(value, 0.0F));
  }
  const Json line = Json::parse(completion_line(completion));
  const std::vector<Json> logprobs = line.elements("logprobs");
  ASSERT_EQ(logprobs.size(), completion.logprobs.size());
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    const double number = Json::object({{"value", logprobs[i]}}).real("value");
    EXPECT_EQ(static_cast<float>(number), completion.logprobs[i]);
  }
}

TEST(Completions, MayLackATextOrHaveOneThatIsNotUtf8) {
  Completion completion = {.tokens = {1}, .logprobs = {-1.0F}, .finish = Finish::stop};
  EXPECT_EQ(completion_line(completion),
            "{\"finish\":\"stop\",\"logprobs\":[-1.0],\"prompt\":0,\"sample\":0,\"tokens\":[1]}\n");
  completion.text = "a\xe2\x82";
  completion.finish = Finish::length;
  const Json line = Json::parse(completion_line(completion));
  EXPECT_EQ(line.text("text"), "a\xe2\x82");
  EXPECT_EQ(line.text("finish"), "length");
  completion.text = "";
  EXPECT_EQ(Json::parse(completion_line(completion)).text("text"), "");
}

}  // namespace
}  // namespace mylos
