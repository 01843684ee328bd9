// SPDX-License-Identifier: BSD-3-Clause
// The deck's scanner, resolver, writer and reference.
#include "io/deck/deck.hpp"

#include <array>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::array specs = {
    integer_param("train", "steps", nullptr, 1, 1000, "steps", "Steps."),
    integer_param("train", "seed", "7", -unbounded, unbounded, "", "Seed."),
    real_param("train", "rate", "0.5", 0, 1, "s", "Rate."),
    boolean_param("model", "tied", "true", "Tied."),
    choice_param("model", "kind", "small", "small|large", "Kind."),
    text_param("model", "name", "", "Name."),
};

Deck parsed(std::string_view text) {
  DeckErrors errors;
  Deck deck = Deck::parse(text, "run.deck", errors);
  EXPECT_THAT(errors.messages(), IsEmpty());
  return deck;
}

std::vector<std::string> problems_of(std::string_view text) {
  DeckErrors errors;
  const Deck deck = Deck::parse(text, "run.deck", errors);
  resolve_deck(deck, specs, {}, errors);
  return errors.messages();
}

/// The problem of `[train] steps = value`; there must be exactly one.
std::string problem_of_steps(const std::string& value) {
  const std::vector<std::string> problems = problems_of("[train]\nsteps = " + value + "\n");
  EXPECT_EQ(problems.size(), 1U) << value;
  return problems.empty() ? "" : problems.front();
}

TEST(DeckScanner, KeepsValuesAndPlaces) {
  const Deck deck = parsed("\xEF\xBB\xBF# head\r\n\r\n[a] # one\r\n  x=1 # c\r\n[b]\n\ty = two words  \n");
  ASSERT_EQ(deck.entries().size(), 2U);
  EXPECT_EQ(deck.find("a.x")->value, "1");
  EXPECT_EQ(deck.find("a.x")->place.text, "run.deck:4");
  EXPECT_EQ(deck.find("b.y")->value, "two words");
  EXPECT_EQ(deck.find("b.x"), nullptr);
  EXPECT_EQ(deck.place_of("b.x").text, "run.deck:5");
  EXPECT_EQ(deck.place_of("c.x").text, "run.deck");
}

TEST(DeckScanner, ReadsQuotedText) {
  const Deck deck = parsed(R"([a]
hash = "a # b" # comment
empty = ""
escaped = "\"\\\" C:\dir"
last = "no newline")");
  EXPECT_EQ(deck.find("a.hash")->value, "a # b");
  EXPECT_EQ(deck.find("a.empty")->value, "");
  EXPECT_EQ(deck.find("a.escaped")->value, R"("\" C:\dir)");
  EXPECT_EQ(deck.find("a.last")->value, "no newline");
}

TEST(DeckScanner, RefusesWhatIsNoText) {
  EXPECT_THAT(problems_of(std::string_view("[train]\n\x89HDF\r\n\x1a\n\0\0", 16)),
              ElementsAre("run.deck:3: control characters: this is not a deck"));
}

TEST(DeckOverride, WinsOverTheFileAndIsNamed) {
  DeckErrors errors;
  Deck deck = parsed("[train]\nsteps = 10\n");
  deck.set("train.steps", "2000", errors);
  deck.set("model.name", "a # \"b\"", errors);
  const ParamValues values = resolve_deck(deck, specs, {}, errors);
  EXPECT_THAT(errors.messages(),
              ElementsAre("--train.steps: [train] steps = 2000 is out of range; use 1 to 1000"));
  EXPECT_EQ(values.text("model.name"), "a # \"b\"");
}

TEST(DeckOverride, IsCheckedLikeTheFile) {
  DeckErrors errors;
  Deck deck = parsed("[train]\nsteps = 10\n");
  deck.set("steps", "5", errors);
  deck.set("train.seed", "1", errors);
  deck.set("train.seed", "2", errors);
  deck.set("train.sead", "1", errors);
  deck.set("model.name", "a\nb", errors);
  resolve_deck(deck, specs, {}, errors);
  EXPECT_THAT(
      errors.messages(),
      ElementsAre("--steps: not an option; set a deck parameter with --section.name=value",
                  "--train.seed: given twice: 1 and 2", "--model.name: control characters in the value",
                  "--train.sead: unknown key [train] sead; did you mean [train] seed?"));
}

TEST(DeckResolver, TakesDefaults) {
  DeckErrors errors;
  const ParamValues values = resolve_deck(parsed("[train]\nsteps = 10\n"), specs, {}, errors);
  EXPECT_TRUE(errors.empty());
  EXPECT_EQ(values.integer("train.steps"), 10);
  EXPECT_EQ(values.integer("train.seed"), 7);
  EXPECT_EQ(values.real("train.rate"), 0.5);
  EXPECT_TRUE(values.boolean("model.tied"));
  EXPECT_EQ(values.text("model.kind"), "small");
  EXPECT_EQ(values.text("model.name"), "");
}

TEST(DeckResolver, TakesIntegersWhole) {
  for (const char* value :
       {"12abc", "nan", "inf", "0x10", "1_000", "2.5", "1e-3", "1e3 4", "-", "--1", "+-1"}) {
    EXPECT_THAT(problem_of_steps(value), HasSubstr("is not an integer")) << value;
  }
  for (const char* value :
       {"0", "-1", "1001", "1e4", "1e30", "9223372036854775808", "99999999999999999999"}) {
    EXPECT_THAT(problem_of_steps(value), HasSubstr("is out of range; use 1 to 1000")) << value;
  }
  EXPECT_EQ(problem_of_steps("1_000"), "run.deck:2: [train] steps = 1_000 is not an integer; write 1000");
  for (const char* value : {"100", "+100", "1e2", "1.0e+2", "100.0"}) {
    DeckErrors errors;
    const std::string text = std::string("[train]\nsteps = ") + value + "\n";
    EXPECT_EQ(resolve_deck(parsed(text), specs, {}, errors).integer("train.steps"), 100) << value;
    EXPECT_THAT(errors.messages(), IsEmpty());
  }
}

TEST(DeckResolver, TakesFiniteRealsOnly) {
  const auto problem = [](const std::string& value) {
    const std::vector<std::string> problems = problems_of("[train]\nsteps = 1\nrate = " + value + "\n");
    EXPECT_EQ(problems.size(), 1U) << value;
    return problems.empty() ? "" : problems.front();
  };
  for (const char* value : {"nan", "-nan", "inf", "-infinity"}) {
    EXPECT_THAT(problem(value), HasSubstr("is not a finite number")) << value;
  }
  for (const char* value : {"1e-3x", "0x1p3", "one", "1,5", "."}) {
    EXPECT_THAT(problem(value), HasSubstr("is not a number")) << value;
  }
  EXPECT_THAT(problem("1e999"), HasSubstr("does not fit a double"));
  EXPECT_THAT(problem("1.0001"), HasSubstr("is out of range; use 0 to 1"));
}

TEST(DeckResolver, ReportsEverythingAtOnce) {
  EXPECT_THAT(
      problems_of("[train]\nsteps = 0\nsteps = 5\n[model]\ntied = 1\nkind = huge\nnmae = x\n[modell]\n"),
      testing::UnorderedElementsAre("run.deck:3: [train] steps was already set at run.deck:2",
                                    "run.deck:8: unknown section [modell]; did you mean [model]?",
                                    "run.deck:7: unknown key [model] nmae; did you mean [model] name?",
                                    "run.deck:2: [train] steps = 0 is out of range; use 1 to 1000",
                                    "run.deck:5: [model] tied = 1 is neither true nor false; write true",
                                    "run.deck:6: [model] kind = huge is unknown; use small or large"));
}

TEST(DeckResolver, LeavesOutWhatFailed) {
  DeckErrors errors;
  const Deck deck = Deck::parse("[train]\nstep = 5\nseed = x\nrate\n", "run.deck", errors);
  const ParamValues values = resolve_deck(deck, specs, {}, errors);
  EXPECT_EQ(errors.messages().size(), 3U) << "a misspelt required key is not missing as well";
  for (const char* key : {"train.steps", "train.seed", "train.rate"})
    EXPECT_FALSE(values.all().contains(key)) << key;
  EXPECT_TRUE(values.all().contains("model.kind"));
}

TEST(DeckResolver, SaysWhyAPluginsSectionIsUnknown) {
  DeckErrors errors;
  const Deck deck = parsed("[train]\nsteps = 1\n[cuda]\nstreams = 2\ngraphs = true\n");
  resolve_deck(deck, specs, {{"cuda", "libcuda.so.1: no such file"}}, errors);
  EXPECT_THAT(errors.messages(),
              ElementsAre("run.deck:3: [cuda] belongs to a plugin that could not be loaded: "
                          "libcuda.so.1: no such file"));
}

TEST(Deck, KeepsOnlyWhatIsDeclared) {
  Deck deck = parsed("[train]\nsteps = 3\nplugin_key = 1\n[of_a_plugin]\nsteps = 4\n");
  deck.keep_declared(specs);
  DeckErrors errors;
  const ParamValues values = resolve_deck(deck, specs, {}, errors);
  EXPECT_THAT(errors.messages(), IsEmpty());
  EXPECT_EQ(values.integer("train.steps"), 3);
}

TEST(DeckErrors, AreThrownTogether) {
  DeckErrors errors;
  EXPECT_NO_THROW(errors.throw_if_any());
  errors.add({"run.deck:1"}, "one");
  errors.add({"run.deck:2"}, "two");
  try {
    errors.throw_if_any();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(), "run.deck:1: one\nrun.deck:2: two");
  }
}

TEST(DeckWriter, RoundTripsExactly) {
  const double rates[] = {0.1, 1.0 / 3.0, 6e-4, 1.0, std::numeric_limits<double>::denorm_min(), 0.0};
  const char* names[] = {"",       "plain/path-1.bin", "two words", " edges ", "a # b",
                         "\"\\\"", "tab\there",        "C:\\",      "\xC3\xA9"};
  for (const double rate : rates) {
    for (const char* name : names) {
      ParamValues values;
      values.set("train.steps", std::int64_t{10});
      values.set("train.seed", std::numeric_limits<std::int64_t>::min());
      values.set("train.rate", rate);
      values.set("model.tied", false);
      values.set("model.kind", std::string("large"));
      values.set("model.name", std::string(name));
      DeckErrors errors;
      const std::string text = write_deck(specs, values);
      const ParamValues again = resolve_deck(Deck::parse(text, "resolved.deck", errors), specs, {}, errors);
      EXPECT_THAT(errors.messages(), IsEmpty()) << text;
      EXPECT_EQ(again.all(), values.all()) << text;
    }
  }
}

TEST(DeckReference, NamesEveryParameter) {
  const std::string help = deck_help(specs, "");
  const std::string page = deck_markdown(specs);
  for (const ParamSpec& spec : specs) {
    EXPECT_THAT(help, HasSubstr(spec.name));
    EXPECT_THAT(page, HasSubstr(std::string("| `") + spec.name + "` |"));
  }
  EXPECT_THAT(page,
              HasSubstr("| `steps` | integer | 1 to 1000 | required | steps | results |  |  | Steps. |"));
}

TEST(DeckReference, SaysWhatAKeyChanges) {
  const ParamSpec spec = text_param("data", "file", "", "A file.")
                             .changes(Effect::place)
                             .of_this_rank()
                             .restart(OnRestart::repeats)
                             .evaluated_with("")
                             .open_in_evaluation();
  EXPECT_THAT(deck_markdown({&spec, 1}),
              HasSubstr("| place only, per rank | repeated | \"\", open | A file. |"));
  EXPECT_THAT(
      deck_help({&spec, 1}, ""),
      HasSubstr("changes place only, per rank; in a restart: repeated; in eval and generate: \"\", open"));
}

TEST(DeckReference, ShowsOneSection) {
  EXPECT_THAT(deck_help(specs, "model"), testing::Not(HasSubstr("[train]")));
  try {
    deck_help(specs, "modle");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_THAT(error.what(), HasSubstr("did you mean [model]?"));
  }
}

}  // namespace
}  // namespace mylos
