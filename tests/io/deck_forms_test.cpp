// SPDX-License-Identifier: BSD-3-Clause
// Forms in which people write decks: encodings, line ends, booleans, blanks and notations of numbers.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/deck/deck.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::array form_specs = {
    integer_param("train", "steps", nullptr, 1, 1000, "steps", "Steps."),
    real_param("train", "limit", "0.5", 0, 1e9, "s", "Limit."),
    boolean_param("model", "tied", "true", "Tied."),
    choice_param("model", "kind", "small", "small|large", "Kind."),
};

struct ResolvedForm {
  ParamValues values;
  std::vector<std::string> problems;
};

ResolvedForm resolve_form(std::string_view text) {
  DeckErrors errors;
  const Deck deck = Deck::parse(text, "run.deck", errors);
  ResolvedForm result;
  result.values = resolve_deck(deck, form_specs, {}, errors);
  result.problems = errors.messages();
  return result;
}

/// The text in UTF-16 with the bytes of each unit in the given order.
std::string wide(std::string_view text, bool is_little, bool has_mark) {
  std::string bytes;
  if (has_mark) bytes = is_little ? "\xff\xfe" : "\xfe\xff";
  for (const char c : text) {
    if (!is_little) bytes += '\0';
    bytes += c;
    if (is_little) bytes += '\0';
  }
  return bytes;
}

constexpr std::string_view good = "[train]\nsteps = 10\n[model]\ntied = false\n";

TEST(DeckForms, AnotherEncodingIsOneProblem) {
  for (const bool is_little : {true, false}) {
    for (const bool has_mark : {true, false})
      EXPECT_THAT(
          resolve_form(wide(good, is_little, has_mark)).problems,
          ElementsAre("run.deck: this is a text in UTF-16 or UTF-32; convert it: iconv -f UTF-16 -t UTF-8"))
          << is_little << has_mark;
  }
}

TEST(DeckForms, LineEndsOfOtherSystems) {
  std::string text(good);
  std::ranges::replace(text, '\n', '\r');
  EXPECT_THAT(resolve_form(text).problems, ElementsAre(HasSubstr("carriage return alone; convert them: tr")));
  text.clear();
  for (const char c : good) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  text.resize(text.size() - 2);  // nor a newline at the end
  const ResolvedForm windows = resolve_form(text);
  EXPECT_THAT(windows.problems, IsEmpty());
  EXPECT_FALSE(windows.values.boolean("model.tied"));
}

TEST(DeckForms, BooleansTakeAnyCase) {
  for (const char* word : {"true", "True", "TRUE"}) {
    const ResolvedForm result =
        resolve_form(fmt::format("[train]\nsteps = 1\n[model]\ntied = {} # comment\n", word));
    EXPECT_THAT(result.problems, IsEmpty()) << word;
    EXPECT_TRUE(result.values.boolean("model.tied"));
  }
  EXPECT_FALSE(resolve_form("[train]\nsteps = 1\n[model]\ntied = False\n").values.boolean("model.tied"));
  for (const auto& [word, meant] :
       {std::pair("Yes", "true"), std::pair("1", "true"), std::pair("off", "false")}) {
    EXPECT_THAT(resolve_form(fmt::format("[train]\nsteps = 1\n[model]\ntied = {}\n", word)).problems,
                ElementsAre(fmt::format("run.deck:4: [model] tied = {} is neither true nor false; write {}",
                                        word, meant)));
  }
}

TEST(DeckForms, OverridesMayHaveBlanksAround) {
  DeckErrors errors;
  Deck deck = Deck::parse("[train]\nsteps = 1\n", "run.deck", errors);
  deck.set("train.steps", " +2e1 ", errors);
  deck.set("train.limit", " 1.5", errors);
  deck.set("model.tied", " false ", errors);
  deck.set("model.kind", "large ", errors);
  const ParamValues values = resolve_deck(deck, form_specs, {}, errors);
  EXPECT_THAT(errors.messages(), IsEmpty());
  EXPECT_EQ(values.integer("train.steps"), 20);
  EXPECT_EQ(values.real("train.limit"), 1.5);
  EXPECT_FALSE(values.boolean("model.tied"));
  EXPECT_EQ(values.text("model.kind"), "large");
}

TEST(DeckForms, OtherNotationsGetAdvice) {
  EXPECT_THAT(resolve_form("[train]\nsteps = 1\nlimit = 1h30m\n").problems,
              ElementsAre("run.deck:3: [train] limit = 1h30m is not a number; write a plain number, in s"));
  EXPECT_THAT(resolve_form("[train]\nsteps = 1\nlimit = 1,5e-3\n").problems,
              ElementsAre("run.deck:3: [train] limit = 1,5e-3 is not a number; write 1.5e-3"));
  EXPECT_THAT(resolve_form("[train]\nstep = 1\n").problems,
              ElementsAre("run.deck:2: unknown key [train] step; did you mean [train] steps?"));
}

}  // namespace
}  // namespace mylos
