// SPDX-License-Identifier: BSD-3-Clause
// Tokenizers: bytes and byte pairs, the files of ranks, where text is cut. GPT-2's own tokens are in
// gpt2_reference_test.cpp.
#include "io/tokens/tokenizer.hpp"

#include <limits>
#include <random>

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "io/tokens/bpe_encoder.hpp"
#include "io/tokens/bpe_tokenizer.hpp"
#include "io/tokens/pretokenizer.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/io/small_ranks.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const Merges words = {{"t", "h"}, {"th", "e"}, {" ", "the"}, {"a", "a"}, {"aa", "aa"}, {"\xc3", "\xa9"}};

std::string error_of(const auto& action) {
  try {
    action();
    return "good";
  } catch (const Error& error) {
    return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
  }
}

std::string random_bytes(std::mt19937& random, std::size_t size, std::string_view alphabet) {
  std::string bytes;
  for (std::size_t i = 0; i < size; ++i) bytes += alphabet[random() % alphabet.size()];
  return bytes;
}

TEST(Tokenizers, AreMadeByTheirNames) {
  EXPECT_EQ(tokenizer_names("|"), "bytes|gpt2");
  EXPECT_EQ(make_tokenizer("bytes")->vocab_size(), tokenizer_kind("bytes").vocab_size);
  EXPECT_EQ(tokenizer_kind("gpt2").vocab_size, 50257);
  for (const char* choice : {"none", "bytes=ranks", "gpt2", "gpt2="})
    EXPECT_THAT(error_of([&] { make_tokenizer(choice); }), StartsWith("2 ")) << choice;
  EXPECT_THAT(error_of([] { make_tokenizer("gpt2=not/there"); }), StartsWith("74 "));
}

TEST(Tokenizers, OfOtherRanksAreNotGpt2s) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "small.tiktoken";
  spill(file, ranks_of(words).text());
  const std::string error = error_of([&] { make_tokenizer("gpt2=" + file.string()); });
  EXPECT_THAT(error, StartsWith("65 " + file.string()));
  EXPECT_THAT(error, HasSubstr("262 tokens with the digest " + ranks_of(words).digest()));
}

TEST(ByteTokenizer, RoundTrip) {
  const auto tokenizer = make_tokenizer("bytes");
  std::string text = "h\xc3\xa9llo\n";
  text += '\0';
  const auto tokens = tokenizer->encode(text);
  ASSERT_EQ(tokens.size(), text.size());
  EXPECT_EQ(tokens[1], 0xc3);
  EXPECT_EQ(tokenizer->decode(tokens), text);
  EXPECT_EQ(tokenizer->identity(), (TokenizerIdentity{.name = "bytes", .ranks = ""}));
  const std::vector<std::uint16_t> end = {tokenizer->end_of_text()};
  EXPECT_EQ(tokenizer->decode(end), "<|endoftext|>");
  const std::vector<std::uint16_t> outside = {257};
  EXPECT_THROW(tokenizer->decode(outside), Error);
}

TEST(BpeTokenizer, MergesInTheOrderOfRanks) {
  const BpeTokenizer tokenizer(ranks_of(words));
  EXPECT_EQ(tokenizer.vocab_size(), 263);
  EXPECT_EQ(tokenizer.end_of_text(), 262);
  // "!" is id 0; letters follow in their order.
  EXPECT_THAT(tokenizer.encode("the the"), ElementsAre(257, 258));
  EXPECT_THAT(tokenizer.encode("th\xc3\xa9"), ElementsAre(256, 261));
  EXPECT_THAT(tokenizer.encode("aaaaaaa"), ElementsAre(260, 259, 'a' - '!'));
  EXPECT_THAT(tokenizer.encode("<|endoftext|>"), testing::SizeIs(13)) << "plain text";
  EXPECT_EQ(tokenizer.decode(std::vector<std::uint16_t>{258, 262, 261}), " the<|endoftext|>\xc3\xa9");
  EXPECT_THROW(tokenizer.decode(std::vector<std::uint16_t>{263}), Error);
  EXPECT_TRUE(tokenizer.encode("").empty());
}

/// Ranks of random merges, each of two neighbours in some text.
std::pair<BpeRanks, std::map<std::string, int>> random_ranks(std::mt19937& random, int count) {
  std::map<std::string, int> ranks;
  Merges merges;
  while (static_cast<int>(merges.size()) < count) {
    const auto parts = merge_simply(random_bytes(random, 60, "abc"), ranks, std::numeric_limits<int>::max());
    if (parts.size() < 2) continue;
    const std::size_t at = random() % (parts.size() - 1);
    merges.emplace_back(parts[at], parts[at + 1]);
    ranks[parts[at] + parts[at + 1]] = static_cast<int>(merges.size());
  }
  return {ranks_of(merges), ranks};
}

TEST(BpeTokenizer, MergesAsAPlainLoopDoes) {
  std::mt19937 random(1);
  for (int vocabulary = 0; vocabulary < 4; ++vocabulary) {
    auto [ranks, plain] = random_ranks(random, 120);
    const BpeTokenizer tokenizer(std::move(ranks));
    for (const std::size_t size : {1, 2, 3, 16, 17, 32, 33, 127, 128, 129, 130, 700}) {
      const std::string text = random_bytes(random, size, "abc");
      std::vector<std::string> tokens;
      for (const std::uint16_t token : tokenizer.encode(text))
        tokens.push_back(tokenizer.ranks().tokens()[token]);
      ASSERT_EQ(tokens, merge_simply(text, plain, std::numeric_limits<int>::max())) << text;
    }
  }
}

TEST(BpeTokenizer, RemembersPiecesOfAnyLength) {
  std::mt19937 random(2);
  auto [ranks, plain] = random_ranks(random, 60);
  const BpeTokenizer tokenizer(std::move(ranks));
  const auto encoder = tokenizer.encoder();
  // The same pieces recur, at the end of a text and earlier in it; zero bytes must not be taken for padding.
  std::vector<std::string> pieces;
  for (std::size_t size = 0; size < 40; ++size) pieces.push_back(random_bytes(random, size, "abc"));
  pieces.push_back(std::string("\0", 1));
  pieces.push_back(std::string("\0\0", 2));
  for (int round = 0; round < 400; ++round) {
    std::string text = pieces[random() % pieces.size()];
    if (round % 2 == 0) text += "1" + pieces[random() % pieces.size()];
    std::vector<std::uint16_t> tokens;
    encoder->append(text, tokens);
    ASSERT_EQ(tokens, tokenizer.encode(text)) << text;
    ASSERT_EQ(tokenizer.decode(tokens), text);
  }
}

TEST(BpeTokenizer, AnyBytesComeBack) {
  const BpeTokenizer tokenizer(ranks_of(words));
  std::mt19937 random(3);
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  for (int round = 0; round < 300; ++round) {
    const std::string bytes =
        random_bytes(random, random() % 300, round % 2 == 0 ? all : "\xc3\xa9\xe3\x80 \xf0\x9f\x98\n'");
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
  }
}

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    pieces.emplace_back(text.substr(0, first_piece(text)));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

TEST(Pretokenizer, CutsTextInPieces) {
  EXPECT_THAT(pieces_of("Hello world's 12ab  x"),
              ElementsAre("Hello", " world", "'s", " 12", "ab", " ", " x"));
  EXPECT_THAT(pieces_of("we'll 'LL ''s"), ElementsAre("we", "'ll", " '", "LL", " ''", "s"));
  EXPECT_THAT(pieces_of("a \n\n b\n"), ElementsAre("a", " \n\n", " b", "\n"));
  EXPECT_THAT(pieces_of("a\tb"), ElementsAre("a", "\t", "b"));
  EXPECT_THAT(pieces_of("x\u3000\u3000y "), ElementsAre("x", "\u3000", "\u3000", "y", " "));
  EXPECT_THAT(pieces_of("\u00e9t\u00e9 \u0663\u00bd!"), ElementsAre("\u00e9t\u00e9", " \u0663\u00bd", "!"));
  // Letters of Unicode 15 and 16, which older tables lack.
  EXPECT_THAT(pieces_of("a\U00031350\U0002ebf0\U00011f04\U00010d4a"), testing::SizeIs(1));
  EXPECT_THAT(pieces_of("\u180e "), ElementsAre("\u180e", " ")) << "no white space";
}

TEST(Pretokenizer, BytesThatAreNotUtf8StandAlone) {
  EXPECT_THAT(pieces_of("ab\xff\xfe"
                        "cd"),
              ElementsAre("ab", "\xff", "\xfe", "cd"));
  EXPECT_THAT(pieces_of("  \xff"), ElementsAre("  ", "\xff")) << "the text ends before it";
  EXPECT_THAT(pieces_of(" \xe3\x80"), ElementsAre(" ", "\xe3", "\x80"));
  EXPECT_THAT(pieces_of("\xed\xa0\x80"), testing::SizeIs(3)) << "a surrogate";
  EXPECT_THAT(pieces_of("\xc0\xaf"), testing::SizeIs(2)) << "longer than need be";
  EXPECT_THAT(pieces_of("\xf4\x90\x80\x80"), testing::SizeIs(4)) << "beyond Unicode";
}

TEST(Pretokenizer, PiecesAreBounded) {
  const std::string letters(2 * most_piece_bytes + 10, 'a');
  EXPECT_EQ(first_piece(letters), most_piece_bytes);
  const std::string spaces(most_piece_bytes + 10, ' ');
  EXPECT_EQ(first_piece(spaces), most_piece_bytes);
  std::string wide;
  while (wide.size() < most_piece_bytes + 10) wide += "\u4e00";
  EXPECT_EQ(first_piece(wide) % 3, 0U) << "no character is cut";
  EXPECT_EQ(last_cut(letters), 2 * most_piece_bytes);
}

TEST(Pretokenizer, TextMayBeCutAtAnyCut) {
  std::mt19937 random(4);
  const std::vector<std::string> parts = {"ab",   " ",      "  ",     "\n",     "'",    "'l",
                                          "l",    "12",     "\u3000", "\u00a0", "\xe3", "\xe3\x80",
                                          "\xff", "\u4e00", "'re",    "\u2029", "!"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    const std::size_t count = 1 + random() % 30;
    for (std::size_t i = 0; i < count; ++i) text += parts[random() % parts.size()];
    const std::size_t known = random() % (text.size() + 1);
    const std::size_t cut = last_cut(std::string_view(text).substr(0, known));
    ASSERT_LE(cut, known);
    auto in_two = pieces_of(std::string_view(text).substr(0, cut));
    for (auto& piece : pieces_of(std::string_view(text).substr(cut))) in_two.push_back(piece);
    ASSERT_EQ(in_two, pieces_of(text)) << testing::PrintToString(text) << " at " << cut;
  }
}

TEST(Pretokenizer, ACutIsNearTheEnd) {
  EXPECT_EQ(last_cut("one two three four"), 13U);
  EXPECT_EQ(last_cut("12ab34cd56ef78gh"), 8U) << "without white space: piece by piece";
  EXPECT_EQ(last_cut("abc"), 0U);
  EXPECT_EQ(last_cut(""), 0U);
}

TEST(BpeRanks, AreTheSameFromBothKindsOfFiles) {
  const BpeRanks ranks = ranks_of(words);
  EXPECT_THAT(ranks.text(), StartsWith("IQ== 0\nIg== 1\n"));
  EXPECT_THAT(ranks.text(), HasSubstr("\ndGhl 257\n"));
  const BpeRanks again = BpeRanks::parse_tiktoken(ranks.text(), "ranks");
  EXPECT_EQ(again.tokens(), ranks.tokens());
  EXPECT_EQ(again.digest(), ranks.digest());
  EXPECT_NE(ranks_of({{"t", "h"}}).digest(), ranks.digest());
  // Lines in another order, with Windows line endings, mean the same.
  std::string lines;
  for (std::size_t at = 0; at < ranks.text().size();) {
    const std::size_t end = ranks.text().find('\n', at);
    lines = ranks.text().substr(at, end - at) + "\r\n" + lines;
    at = end + 1;
  }
  EXPECT_EQ(BpeRanks::parse_tiktoken(lines, "ranks").digest(), ranks.digest());
}

TEST(BpeRanks, AreReadFromFilesAndFolders) {
  const ScratchDirectory scratch;
  const BpeRanks ranks = ranks_of(words);
  const MergesFiles files = files_of(words);
  spill(scratch.path() / "vocab.json", files.vocab);
  spill(scratch.path() / "merges.txt", files.merges);
  spill(scratch.path() / "ranks.tiktoken", ranks.text());
  for (const fs::path& path :
       {scratch.path(), scratch.path() / "vocab.json", scratch.path() / "ranks.tiktoken"})
    EXPECT_EQ(BpeRanks::read(path).digest(), ranks.digest()) << path;
  fs::remove(scratch.path() / "merges.txt");
  EXPECT_THAT(error_of([&] { BpeRanks::read(scratch.path()); }), HasSubstr("merges.txt"));
}

TEST(BpeRanks, BrokenTiktokenFilesAreNamedWithTheLine) {
  const std::string good = ranks_of(words).text();
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::pair<std::string, std::string> cases[] = {
      {changed("Ig== 1\n", "Ig==1\n"), "65 f:2: a line is base64"},
      {changed("Ig== 1\n", "Ig== 1x\n"), "65 f:2: the rank is not a number"},
      {changed("Ig== 1\n", "Ig== -1\n"), "65 f:2: the rank is not a number"},
      {changed("Ig== 1\n", "Ig== 99999999999999999999\n"), "65 f:2: the rank is not a number"},
      {changed("Ig== 1\n", "Ig== 65535\n"), "65 f:2: rank 65535; ids have 16 bits"},
      {changed("Ig== 1\n", "Ig= 1\n"), "65 f:2: the bytes are not in base64"},
      {changed("Ig== 1\n", "I*== 1\n"), "65 f:2: the bytes are not in base64"},
      {changed("Ig== 1\n", "Ih== 1\n"), "65 f:2: the bytes are not in base64"},
      {changed("Ig== 1\n", " 1\n"), "65 f:2: the bytes are not in base64"},
      {changed("Ig== 1\n", "Ig== 0\n"), "65 f:2: rank 0 is also the rank of line 1"},
      {changed("Ig== 1\n", "IQ== 1\n"), "65 f:2: rank 1 has the bytes of rank 0"},
      {changed("Ig== 1\n", "ISE= 1\n"), "65 f:2: rank 1 has 2 bytes"},
      {changed("Ig== 1\n", ""), "65 f: there is no rank 1"},
      {changed("dGhl 257\n", "dGhlbg== 257\n"),
       "65 f:258: rank 257 is not the merge of two tokens of lower rank"},
      {"", "65 f: 0 ranks; a vocabulary has at least the 256 single bytes"},
  };
  for (const auto& [text, error] : cases)
    EXPECT_THAT(error_of([&] { BpeRanks::parse_tiktoken(text, "f"); }), StartsWith(error));
}

TEST(BpeRanks, BrokenMergesAreNamedWithTheLine) {
  const MergesFiles good = files_of(words);
  const auto changed = [](std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  };
  const auto error = [&](const std::string& vocab, const std::string& merges) {
    return error_of([&] { BpeRanks::parse_merges(vocab, "v", merges, "m"); });
  };
  EXPECT_EQ(error(good.vocab, good.merges), "good");
  EXPECT_THAT(error(good.vocab, changed(good.merges, "th e", "the")),
              StartsWith("65 m:3: a line is two tokens"));
  EXPECT_THAT(error(good.vocab, changed(good.merges, "th e", "th e x")),
              StartsWith("65 m:3: a line is two tokens"));
  EXPECT_THAT(error(good.vocab, changed(good.merges, "th e", "th \u4e00")),
              StartsWith("65 m:3: a character"));
  EXPECT_THAT(error(good.vocab, changed(good.merges, "th e", "th \u00ad")),
              StartsWith("65 m:3: a character"));
  EXPECT_THAT(error(good.vocab, changed(good.merges, "th e", "th \xc3")), StartsWith("65 m:3: a character"));
  EXPECT_THAT(error(good.vocab, changed(good.merges, "th e", " e")), StartsWith("65 m:3: a character"));
  EXPECT_THAT(error(good.vocab, changed(good.merges, "th e", "t he")),
              StartsWith("65 m:3: the merges of lower ranks turn"));
  EXPECT_THAT(error(good.vocab, changed(good.merges, "th e", "tx ey")),
              StartsWith("65 m:3: rank 257 is not the merge"));
  EXPECT_THAT(error(good.vocab, changed(good.merges, "th e", "t h")),
              StartsWith("65 m:3: rank 257 has the bytes"));
  EXPECT_THAT(error("{", good.merges), StartsWith("65 v: "));
  EXPECT_THAT(error("[]", good.merges), StartsWith("65 v: "));
  EXPECT_THAT(error(changed(good.vocab, "\"the\":257", "\"the\":\"257\""), good.merges),
              StartsWith("65 v: \"the\" is not"));
  EXPECT_THAT(error(changed(good.vocab, "\"the\":257", "\"the\":256"), good.merges),
              StartsWith("65 v: \"the\" has the id 256, to which the merges give other bytes"));
  EXPECT_THAT(error(changed(good.vocab, "\"the\":257", "\"the\":999"), good.merges),
              StartsWith("65 v: \"the\" has the id 999;"));
  EXPECT_THAT(error(changed(good.vocab, "\"the\":257,", ""), good.merges), StartsWith("65 v: 262 entries"));
  EXPECT_THAT(error(changed(good.vocab, "text|>\":262", "text|>\":261"), good.merges),
              StartsWith("65 v: \"<|endoftext|>\""));
}

}  // namespace
}  // namespace mylos::test
