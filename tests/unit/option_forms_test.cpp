// SPDX-License-Identifier: BSD-3-Clause
// Forms in which people write options and numbers: blanks, signs, exponents, empty values, steps,
// misspellings.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/commands/commands.hpp"
#include "app/deck/command_line.hpp"
#include "core/base/error.hpp"
#include "core/base/nearest.hpp"
#include "core/base/number_text.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string message_of_usage(const auto& work) {
  try {
    work();
    return "good";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
}

CommandSyntax forms_syntax() {
  return {.name = "subject",
          .help = "subject --help",
          .options = {{.name = "flag"},
                      {.name = "count", .kind = OptionKind::integer, .default_value = "3", .least = 0},
                      {.name = "rate", .kind = OptionKind::real, .least = 0},
                      {.name = "word", .kind = OptionKind::text}},
          .takes_overrides = true,
          .elsewhere = {{"other", "another command has it"}}};
}

CommandLine forms_parsed(const std::vector<std::string>& words) {
  return parse_words(forms_syntax(), words);
}

std::string forms_problem(const std::vector<std::string>& words) {
  return message_of_usage([&] { forms_parsed(words); });
}

TEST(OptionForms, NumbersTakeSignsExponentsAndBlanks) {
  EXPECT_EQ(forms_parsed({"--count=1e8"}).integer("count"), 100000000);
  EXPECT_EQ(forms_parsed({"--count", " +7 "}).integer("count"), 7);
  EXPECT_EQ(forms_parsed({"--rate=+1e-3"}).real("rate"), 1e-3);
  EXPECT_EQ(forms_problem({"--rate=1,5"}), "--rate=1,5 is not a number; write 1.5");
  EXPECT_EQ(forms_problem({"--count=1_000"}), "--count=1_000 is not an integer; write 1000");
  EXPECT_EQ(forms_problem({"--count=-1"}), "--count=-1 must be at least 0");
  EXPECT_EQ(forms_problem({"--rate", "-0.5"}), "--rate=-0.5 must be at least 0");
  for (const char* value : {"nan", "inf", "-inf"})
    EXPECT_THAT(forms_problem({std::string("--rate=") + value}), HasSubstr("is not a finite number"))
        << value;
}

TEST(OptionForms, EmptyValuesAreValues) {
  EXPECT_EQ(forms_parsed({"--word="}).text("word"), "");
  EXPECT_EQ(forms_problem({"--count="}), "--count= is not an integer");
  EXPECT_THAT(forms_parsed({"--data.valid=", "a"}).overrides, ElementsAre(Pair("data.valid", "")));
  CommandSyntax plain = forms_syntax();
  plain.takes_overrides = false;
  EXPECT_EQ(message_of_usage([&] { parse_words(plain, {"--train.steps="}); }),
            "subject has no option --train.steps=; see subject --help");
  EXPECT_EQ(forms_problem({"--=x"}), "subject has no option --=x; see subject --help");
}

TEST(OptionForms, DeckParametersTakeTheNextWordToo) {
  const CommandLine line = forms_parsed({"--train.steps", "9", "a.deck", "--optim.lr", "-1", "--flag"});
  EXPECT_THAT(line.overrides, ElementsAre(Pair("train.steps", "9"), Pair("optim.lr", "-1")));
  EXPECT_EQ(line.argument(0, "a deck"), "a.deck");
  EXPECT_TRUE(line.flag("flag"));
  EXPECT_EQ(forms_problem({"--train.steps", "--flag"}), "--train.steps needs a value: --train.steps=VALUE");
}

TEST(OptionForms, WordsAfterTwoDashesAreArguments) {
  EXPECT_EQ(forms_parsed({"--flag", "--", "--odd.name"}).argument(0, "a deck"), "--odd.name");
  EXPECT_EQ(forms_parsed({"-"}).argument(0, "a deck"), "-");
}

TEST(OptionForms, MistakesAreNamedInOneLine) {
  EXPECT_EQ(forms_problem({"--count=1", "--count=2"}), "subject: --count is given twice");
  EXPECT_EQ(forms_problem({"--word"}), "subject: --word needs a value: --word=VALUE");
  EXPECT_EQ(forms_problem({"--word", "--flag"}), "subject: --word needs a value: --word=VALUE");
  EXPECT_EQ(forms_problem({"--flag=true"}), "subject: --flag takes no value");
  EXPECT_EQ(forms_problem({"--cuont=1"}),
            "subject has no option --cuont=1 (did you mean --count?); see subject --help");
  EXPECT_EQ(forms_problem({"--other"}),
            "subject has no option --other (another command has it); see subject --help");
  EXPECT_THAT(forms_problem({"-n", "2"}), HasSubstr("subject has no option -n"));
}

TEST(OptionForms, StepsAreNumbersOrNamesOfCheckpoints) {
  for (const char* text : {"6", "step_6", "step_000006", "0006"})
    EXPECT_EQ(parse_step("step", text), 6) << text;
  EXPECT_FALSE(parse_step("step", "newest"));
  for (const char* text : {"", "step_", "step_6x", "-6", "+6", "6.0", "latest", "99999999999999999999"}) {
    EXPECT_EQ(message_of_usage([&] { parse_step("step", text); }),
              fmt::format("--step={} must be newest, a step N or step_N", text));
  }
}

TEST(OptionForms, NearestFindsMisspellings) {
  EXPECT_EQ(nearest("trian", command_names()), "train");
  EXPECT_EQ(nearest("generat", command_names()), "generate");
  EXPECT_EQ(nearest("zzzzzzzz", command_names()), "");
}

TEST(NumberText, DecimalsStayShort) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(decimals(209.2834, 3), "209.283");
  EXPECT_EQ(decimals(-12345678.5, 1), "-12345678.5");
  EXPECT_EQ(decimals(std::exp(345.0), 3), "6.786e+149");
  EXPECT_EQ(decimals(infinity, 2), "inf");
  EXPECT_EQ(decimals(nan, 2), "nan");
}

TEST(NumberText, AdviceFitsTheKindOfNumber) {
  const auto of_real = [](const char* text) { return message_of_usage([&] { parse_real(text, "s"); }); };
  const auto of_integer = [](const char* text) {
    return message_of_usage([&] { parse_integer(text, "tokens"); });
  };
  EXPECT_EQ(of_real("1,5e-3"), "is not a number; write 1.5e-3");
  EXPECT_EQ(of_real("1,000,000"), "is not a number; write 1000000");
  EXPECT_EQ(of_real("1h30m"), "is not a number; write a plain number, in s");
  EXPECT_EQ(of_real("soon"), "is not a number");
  EXPECT_EQ(of_integer("1,000"), "is not an integer; write 1000");
  EXPECT_EQ(of_integer("0x10"), "is not an integer; write 16");
  EXPECT_EQ(of_integer("10GB"), "is not an integer; write a plain number, in tokens");
  EXPECT_EQ(of_integer("2.5"), "is not an integer");
  EXPECT_FALSE(parse_integer("1e19"));
  EXPECT_FALSE(parse_integer("9223372036854775808"));
  EXPECT_EQ(parse_integer("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
}

}  // namespace
}  // namespace mylos
