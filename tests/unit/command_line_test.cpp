// SPDX-License-Identifier: BSD-3-Clause
// The command line: options of each kind, overrides, refused arguments, and the help of every subcommand.
#include "app/deck/command_line.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/commands/commands.hpp"
#include "core/base/error.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

CommandSyntax syntax() {
  return {.name = "subject",
          .help = "subject --help",
          .options = {{.name = "flag"},
                      {.name = "count", .kind = OptionKind::integer, .default_value = "3"},
                      {.name = "rate", .kind = OptionKind::real},
                      {.name = "word", .kind = OptionKind::text, .implicit_value = "implied"},
                      {.name = "each", .kind = OptionKind::texts}},
          .takes_overrides = true};
}

std::string error_of(const CommandSyntax& syntax, const std::vector<std::string>& words) {
  try {
    parse_words(syntax, words);
    return "good";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
}

TEST(CommandLine, HasDefaults) {
  const CommandLine line = parse_words(syntax(), {});
  EXPECT_FALSE(line.flag("flag"));
  EXPECT_EQ(line.integer("count"), 3);
  EXPECT_FALSE(line.has("rate"));
  EXPECT_FALSE(line.has("word"));
  EXPECT_TRUE(line.texts("each").empty());
}

TEST(CommandLine, TakesOptionsArgumentAndOverrides) {
  const CommandLine line = parse_words(syntax(), {"a.deck", "--flag", "--count=-7", "--rate", "0.5", "--word",
                                                  "--train.steps=9", "--data.valid=", "--run.dir=a=b"});
  EXPECT_EQ(line.argument(0, "a deck"), "a.deck");
  EXPECT_TRUE(line.flag("flag"));
  EXPECT_EQ(line.integer("count"), -7);
  EXPECT_EQ(line.real("rate"), 0.5);
  EXPECT_EQ(line.text("word"), "implied");
  EXPECT_THAT(line.overrides,
              ElementsAre(Pair("train.steps", "9"), Pair("data.valid", ""), Pair("run.dir", "a=b")));
}

/// In their order, also twice the same, and none at all of what looks like an option.
TEST(CommandLine, TakesAnOptionOfSeveralTexts) {
  EXPECT_THAT(parse_words(syntax(), {"--each=b"}).texts("each"), ElementsAre("b"));
  EXPECT_THAT(
      parse_words(syntax(), {"--each=b", "a.deck", "--each", "a", "--each=", "--each=b=b"}).texts("each"),
      ElementsAre("b", "a", "", "b=b"));
  EXPECT_THAT(error_of(syntax(), {"--word=b", "--word=a"}), HasSubstr("--word is given twice"));
  EXPECT_THAT(error_of(syntax(), {"--each"}), HasSubstr("--each"));
}

TEST(CommandLine, RefusesUnknownOptionsAndArguments) {
  EXPECT_EQ(error_of(syntax(), {"--rates=1"}),
            "subject has no option --rates=1 (did you mean --rate?); see subject --help");
  EXPECT_EQ(error_of(syntax(), {"a", "b"}), "subject: unexpected argument b; see subject --help");
  EXPECT_EQ(error_of(syntax(), {"--train.steps"}), "--train.steps needs a value: --train.steps=VALUE");
  EXPECT_EQ(error_of(syntax(), {"--count=x"}), "--count=x is not an integer");
  CommandSyntax plain = syntax();
  plain.takes_overrides = false;
  EXPECT_THAT(error_of(plain, {"--train.steps=9"}), HasSubstr("has no option --train.steps=9"));
}

TEST(Commands, AreInTheUsageAndHaveHelp) {
  for (const char* name :
       {"train", "eval", "generate", "tokenize", "inspect", "convert", "report", "help", "version"}) {
    EXPECT_THAT(usage_text(), HasSubstr(std::string("\n  mylos ") + name + " "));
    EXPECT_THAT(command_help(name), HasSubstr("--plugin-path"));
  }
  EXPECT_THAT(command_help("train"), HasSubstr("--restart [=arg(=newest)]"));
  EXPECT_THROW(command_help("trian"), Error);
}

}  // namespace
}  // namespace mylos
