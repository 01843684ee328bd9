// SPDX-License-Identifier: BSD-3-Clause
// JsonText, which reads a key's text from JSON objects in parts: texts, errors, and a comparison with a
// library that reads whole values.
#include "io/tokens/json_text.hpp"

#include <random>

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "io/json.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

using testing::StartsWith;

/// The text, taken in parts of `part` bytes; or "no object", or the error.
std::string text_of(const std::string& line, std::size_t part = 1000000) {
  JsonText json("text");
  std::string text;
  try {
    for (std::size_t at = 0; at < line.size(); at += part)
      json.take(std::string_view(line).substr(at, part), text);
    return json.end() ? text : "no object";
  } catch (const Error& error) {
    return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
  }
}

const std::vector<std::pair<std::string, std::string>> good = {
    {R"({"text":"a"})", "a"},
    {R"( { "text" : "" } )", ""},
    {"\t{\"text\":\"a\"}\r", "a"},
    {R"({"a":{"text":"b"},"text":"c","d":[{"text":"e"},[],{}]})", "c"},
    {R"({"te\u0078t":"\u00e9\ud83d\ude00\n\"\\\/\b\f\r\t"})", "\u00e9\U0001f600\n\"\\/\b\f\r\t"},
    {"{\"text\":\"\u00e9\u4e00\U0001f600\"}", "\u00e9\u4e00\U0001f600"},
    {R"({"n":[0,-0,1.5,10e3,-1E-2,0.0e+7,true,false,null],"text":"x"})", "x"},
    {R"({"text":"\ud800"})", "\ufffd"},
    {R"({"text":"\ud800\ud800\udc00a\udc00\ud800b"})", "\ufffd\U00010000a\ufffd\ufffdb"},
    {R"({"text":"\u0000"})", std::string("\0", 1)},
    {R"({"textual":"a","tex":"b","text":"c"})", "c"},
    {"", "no object"},
    {" \t\r", "no object"},
};

TEST(JsonText, IsThatOfTheKey) {
  for (const auto& [line, text] : good) {
    for (std::size_t part = 1; part <= line.size() + 1; ++part)
      ASSERT_EQ(text_of(line, part), text) << line << " " << part;
  }
}

TEST(JsonText, WhatIsNoneIsRefused) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"text":"a")", "not JSON: it ends too early"},
      {R"({"text":"a)", "not JSON: it ends too early"},
      {R"({"text":"a"}})", "not JSON: '}' is out of place"},
      {R"({"text":"a"} x)", "not JSON: 'x' is out of place"},
      {R"({"text":"a",})", "not JSON: '}' is out of place"},
      {R"({"text" "a"})", "not JSON: '\"' is out of place"},
      {R"({text:"a"})", "not JSON: 't' is out of place"},
      {R"({"text":"\x"})", "not JSON: 'x' is out of place"},
      {R"({"text":"\u12g4"})", "not JSON: 'g' is out of place"},
      {"{\"text\":\"a\tb\"}", "not JSON: the byte 0x09 is out of place"},
      {"{\"text\":\"\xff\"}", "not JSON: text that is not UTF-8"},
      {"{\"text\":\"\xc3\"}", "not JSON: text that is not UTF-8"},
      {"{\"text\":\"\xed\xa0\x80\"}", "not JSON: text that is not UTF-8"},
      {R"({"a":01,"text":"a"})", "not JSON: '1' is out of place"},
      {R"({"a":1.,"text":"a"})", "not JSON: ',' is out of place"},
      {R"({"a":+1,"text":"a"})", "not JSON: '+' is out of place"},
      {R"({"a":1e,"text":"a"})", "not JSON: ',' is out of place"},
      {R"({"a":1e+-2,"text":"a"})", "not JSON: '-' is out of place"},
      {R"({"a":trux,"text":"a"})", "not JSON: 'x' is out of place"},
      {R"({"a":[1},"text":"a"})", "not JSON: '}' is out of place"},
      {R"(["text"])", "not a JSON object"},
      {R"("text")", "not a JSON object"},
      {R"({"a":"text"})", "has no \"text\""},
      {R"({})", "has no \"text\""},
      {R"({"text":1})", "\"text\" is not text"},
      {R"({"text":{"text":"a"}})", "\"text\" is not text"},
      {R"({"text":"a","text":"b"})", "has \"text\" twice"},
      {"{\"a\":" + std::string(64, '['), "JSON that is nested too deeply: more than 64 levels"},
  };
  for (const auto& [line, error] : cases) {
    EXPECT_THAT(text_of(line), StartsWith("65 " + error)) << line;
    EXPECT_EQ(text_of(line, 1), text_of(line)) << line;
  }
}

TEST(JsonText, OfOneObjectAfterAnother) {
  JsonText json("text");
  std::string text;
  for (const char* line : {R"({"text":"a"})", " ", R"({"text":"b","n":1})"}) {
    json.take(line, text);
    json.end();
  }
  EXPECT_EQ(text, "ab");
}

/// Whether Json refuses `line` for a reason that does not matter to a corpus.
bool has_a_key_twice(const std::string& line) {
  try {
    Json::parse(line);
    return false;
  } catch (const Error& error) {
    return std::string_view(error.what()).ends_with(" twice");
  }
}

TEST(JsonText, IsWhatTheLibraryReads) {
  std::mt19937 random(5);
  const std::string alphabet = "{}[]\",:\\utrefalsn019.-+eE \xc3\xa9\x01";
  int read = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string line = good[random() % good.size()].first;
    const std::size_t changes = 1 + random() % 2;
    for (std::size_t i = 0; i < changes && !line.empty(); ++i) {
      const std::size_t at = random() % line.size();
      if (random() % 3 == 0) {
        line.erase(at, 1);
      } else if (random() % 2 == 0) {
        line.insert(at, 1, alphabet[random() % alphabet.size()]);
      } else {
        line[at] = alphabet[random() % alphabet.size()];
      }
    }
    const std::string text = text_of(line, 1 + random() % 20);
    if (text.find("\ufffd") != std::string::npos) continue;  // the library rejects lone surrogates
    const auto whole = Json::parse_if_whole(line);
    if (text.starts_with("65 not JSON:")) {
      ASSERT_FALSE(whole && whole->is_object()) << line << "\n" << text;
    } else if (text != "no object" && !text.starts_with("65 ") && !has_a_key_twice(line)) {
      ASSERT_TRUE(whole && whole->is_object()) << line << "\n" << text;
      ASSERT_EQ(text, whole->text("text")) << line;
      ++read;
    }
  }
  EXPECT_GT(read, 1000);
}

}  // namespace
}  // namespace mylos::test
