// SPDX-License-Identifier: BSD-3-Clause
// TextStream: whole characters, and stop texts across any division into tokens.
#include "app/inference/text_stream.hpp"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace mylos {
namespace {

using testing::ElementsAre;
using Texts = std::vector<std::string>;

/// What each token shows, and then what the end shows.
Texts shown(TextStream& stream, const Texts& tokens) {
  Texts parts;
  for (const std::string& token : tokens) parts.emplace_back(stream.push(token));
  parts.emplace_back(stream.finish());
  return parts;
}

Texts shown(const Texts& tokens, const Texts& stop_texts = {}) {
  TextStream stream(stop_texts);
  return shown(stream, tokens);
}

TEST(TextStream, ShowsPlainTextAtOnce) {
  EXPECT_THAT(shown({"To", " be", "", "\n"}), ElementsAre("To", " be", "", "\n", ""));
}

TEST(TextStream, CharactersAreShownWhole) {
  // U+20AC, U+1F600, U+00E9.
  EXPECT_THAT(shown({"a\xe2", "\x82", "\xac", "\xf0\x9f\x98", "\x80\xc3", "\xa9z"}),
              ElementsAre("a", "", "\xe2\x82\xac", "", "\xf0\x9f\x98\x80", "\xc3\xa9z", ""));
}

TEST(TextStream, TheEndShowsAnIncompleteCharacter) {
  EXPECT_THAT(shown({"a\xe2\x82"}), ElementsAre("a", "\xe2\x82"));
}

TEST(TextStream, BytesThatAreNoCharacterPass) {
  EXPECT_THAT(shown({"\x82", "\xff", "\xc0", "\xf5", "\xc1\x80"}),
              ElementsAre("\x82", "\xff", "\xc0", "\xf5", "\xc1\x80", ""));
  // The beginning of a character, and then something else.
  EXPECT_THAT(shown({"\xe2", "\xe2", "a"}), ElementsAre("", "\xe2",
                                                        "\xe2"
                                                        "a",
                                                        ""));
  for (const char lead : {'\xc3', '\xe2', '\xf0'}) {
    TextStream stream;
    std::string all(1, lead);
    stream.push(all);
    for (int i = 0; i < 3; ++i) {
      all += '\x80';
      stream.push("\x80");
    }
    EXPECT_EQ(stream.text(), all) << "at most three bytes are held back";
  }
}

TEST(TextStream, EndsBeforeAStopText) {
  TextStream stream({"END"});
  EXPECT_EQ(stream.push("the "), "the ");
  EXPECT_EQ(stream.push("xENDy"), "x");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.text(), "the x");
  EXPECT_THROW(stream.push("a"), Error);
}

TEST(TextStream, FindsAStopTextAcrossTokens) {
  TextStream stream({"\n\n"});
  EXPECT_THAT(shown(stream, {"a\n", "b", "\n", "\nc"}), ElementsAre("a", "\nb", "", "", ""));
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.text(), "a\nb");
}

TEST(TextStream, HoldsBackWhatMayBecomeAStopText) {
  TextStream stream({"aab"});
  EXPECT_THAT(shown(stream, {"a", "a", "a", "c", "xa", "b", "aa"}),
              ElementsAre("", "", "a", "aac", "x", "ab", "", "aa"));
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, OfSeveralStopTextsTheFirstCompleteOneCounts) {
  for (const Texts& tokens : {Texts{"xabcd"}, Texts{"x", "a", "b", "c", "d"}, Texts{"xa", "bcd"}}) {
    TextStream short_one({"abc", "b"});  // "b" is complete first, though "abc" begins earlier
    for (const std::string& token : tokens)
      if (!short_one.stopped()) short_one.push(token);
    EXPECT_EQ(short_one.text(), "xa");
    TextStream long_one({"bc", "abc", "c"});  // all three are complete at once
    for (const std::string& token : tokens)
      if (!long_one.stopped()) long_one.push(token);
    EXPECT_EQ(long_one.text(), "x");
  }
}

TEST(TextStream, AStopTextMayBeginWithinACharacter) {
  TextStream stream({"\xac!"});
  EXPECT_THAT(shown(stream, {"\xe2\x82\xac", "?", "\xe2\x82\xac", "!"}),
              ElementsAre("", "\xe2\x82\xac?", "", "\xe2\x82", ""));
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, RefusesAnEmptyStopText) {
  try {
    TextStream stream({"a", ""});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(error.what(), "--stop needs a text: every text ends with an empty one");
  }
}

/// The text before the stop text that ends first, and of these, before the one that begins first.
std::string before_stop(const std::string& text, const Texts& stop_texts) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stop_texts)
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(TextStream, AnyDivisionGivesTheSameText) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random()) % count; };
  const Texts pieces = {"a", "b", "c", "\xe2\x82\xac", "\xe2\x82", "\xff"};
  const auto text_of = [&](std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += pieces[below(below(2) == 0 ? 2 : pieces.size())];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    Texts stop_texts;
    for (std::size_t i = below(3); i-- > 0;) stop_texts.push_back(text_of(1 + below(5)));
    const std::string text = text_of(below(30));
    TextStream stream(stop_texts);
    std::string all;
    for (std::size_t i = 0; i < text.size() && !stream.stopped();) {
      const std::size_t size = 1 + below(4);
      all += stream.push(text.substr(i, size));
      i += size;
    }
    all += stream.finish();
    EXPECT_EQ(all, before_stop(text, stop_texts));
    EXPECT_EQ(stream.text(), all);
    EXPECT_EQ(stream.stopped(), all != text);
  }
}

}  // namespace
}  // namespace mylos
