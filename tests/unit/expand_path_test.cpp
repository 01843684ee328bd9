// SPDX-License-Identifier: BSD-3-Clause
// Home directories and variables at the beginning of paths: in the function, in a deck, in lists of data.
#include "core/base/expand_path.hpp"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/deck/run_config.hpp"
#include "core/base/error.hpp"
#include "io/tokens/data_sources.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A variable of the environment for as long as this object lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::string path_problem(const char* path) {
  try {
    return "good: " + expand_path(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
}

TEST(ExpandPath, TakesHomeAndVariablesAtTheBeginning) {
  const Variable home("HOME", "/home/me");
  const Variable scratch("MYLOS_TEST_SCRATCH", "/scratch/me");
  const std::pair<const char*, const char*> cases[] = {{"~", "/home/me"},
                                                       {"~/runs/x", "/home/me/runs/x"},
                                                       {"$MYLOS_TEST_SCRATCH", "/scratch/me"},
                                                       {"$MYLOS_TEST_SCRATCH/x", "/scratch/me/x"},
                                                       {"${MYLOS_TEST_SCRATCH}_2/x", "/scratch/me_2/x"},
                                                       {"$MYLOS_TEST_SCRATCH.bin", "/scratch/me.bin"},
                                                       {"~root", "/root"},
                                                       {"", ""},
                                                       {"./~/x", "./~/x"},
                                                       {"a~/$MYLOS_TEST_SCRATCH", "a~/$MYLOS_TEST_SCRATCH"}};
  for (const auto& [path, expected] : cases) EXPECT_EQ(expand_path(path), expected) << path;
}

TEST(ExpandPath, NamesWhatIsMissing) {
  const Variable unset("MYLOS_TEST_UNSET", nullptr);
  EXPECT_EQ(path_problem("$MYLOS_TEST_UNSET/x"),
            "$MYLOS_TEST_UNSET/x: the variable MYLOS_TEST_UNSET is not set");
  const Variable empty("MYLOS_TEST_UNSET", "");
  EXPECT_THAT(path_problem("${MYLOS_TEST_UNSET}/x"), HasSubstr("MYLOS_TEST_UNSET is not set to anything"));
  EXPECT_THAT(path_problem("~no_such_user/x"), HasSubstr("there is no user \"no_such_user\""));
  for (const char* path : {"$", "$/x", "${MYLOS_TEST_UNSET", "$1"})
    EXPECT_THAT(path_problem(path), HasSubstr("a variable is written $NAME or ${NAME}")) << path;
}

TEST(ExpandPath, InsertsNoPatterns) {
  const Variable odd("MYLOS_TEST_ODD", "/a[b]*");
  EXPECT_EQ(expand_glob("$MYLOS_TEST_ODD/*.bin"), "/a\\[b\\]\\*/*.bin");
}

TEST(ExpandPath, IsDoneInEveryEntryOfAList) {
  const Variable home("HOME", "/home/me");
  const Variable data("MYLOS_TEST_DATA", "/data");
  const auto sources = parse_sources("~/a*.bin:0.5, nanogpt=$MYLOS_TEST_DATA/b.bin : 1e-3, \\~/c:+1");
  ASSERT_EQ(sources.size(), 3U);
  EXPECT_EQ(sources[0].patterns.front().glob, "/home/me/a*.bin");
  EXPECT_EQ(sources[1].patterns.front().glob, "/data/b.bin");
  EXPECT_EQ(sources[2].patterns.front().glob, "\\~/c");
  EXPECT_EQ(sources[0].weight, 500);
  EXPECT_EQ(sources[1].weight, 1);
  EXPECT_EQ(sources[2].weight, 1000);
  EXPECT_EQ(sources[0].text, "~/a*.bin:0.5");
}

struct Configured {
  RunConfig config;
  ParamValues values;
  std::vector<std::string> problems;
};

Configured configure_paths() {
  DeckErrors errors;
  const Deck deck = Deck::parse(
      "[model]\npreset = gpt2-124m\n[train]\nsteps = 9\nglobal_batch = 8\n[data]\ntrain = ~/t.bin, b.bin\n"
      "valid = $MYLOS_TEST_DATA/v.bin\ntokenizer = gpt2\nranks = ${MYLOS_TEST_DATA}/ranks\n"
      "[checkpoint]\ndir = ~/ck\n[run]\ndir = $MYLOS_TEST_DATA/run\n",
      "run.deck", errors);
  Configured result;
  result.config = make_run_config(deck, deck_params(), {1}, errors, result.values);
  result.problems = errors.messages();
  return result;
}

TEST(ExpandPath, IsDoneInEveryPathOfADeckAndTheResolvedDeckKeepsWhatWasWritten) {
  const Variable home("HOME", "/home/me");
  const Variable data("MYLOS_TEST_DATA", "/data");
  const Configured result = configure_paths();
  ASSERT_THAT(result.problems, testing::IsEmpty());
  EXPECT_EQ(result.config.run_dir, "/data/run");
  EXPECT_EQ(result.config.checkpoint.directory, "/home/me/ck");
  EXPECT_EQ(result.config.data.ranks, "/data/ranks");
  EXPECT_EQ(result.config.data.train.front().patterns.front().glob, "/home/me/t.bin");
  EXPECT_EQ(result.config.data.valid.front().patterns.front().glob, "/data/v.bin");
  const std::string resolved = write_deck(deck_params(), result.values);
  for (const char* written :
       {"dir = \"$MYLOS_TEST_DATA/run\"", "dir = \"~/ck\"", "ranks = \"${MYLOS_TEST_DATA}/ranks\"",
        "train = \"~/t.bin, b.bin\"", "valid = \"$MYLOS_TEST_DATA/v.bin\""})
    EXPECT_THAT(resolved, HasSubstr(written));
}

TEST(ExpandPath, ReportsEveryPathOfADeck) {
  const Variable home("HOME", "/home/me");
  const Variable data("MYLOS_TEST_DATA", nullptr);
  EXPECT_THAT(
      configure_paths().problems,
      ElementsAre(HasSubstr("[run] dir = $MYLOS_TEST_DATA/run: the variable MYLOS_TEST_DATA is not set"),
                  HasSubstr("[data] ranks = ${MYLOS_TEST_DATA}/ranks: the variable"),
                  HasSubstr("[data] valid = $MYLOS_TEST_DATA/v.bin: the variable")));
}

}  // namespace
}  // namespace mylos
