// SPDX-License-Identifier: BSD-3-Clause
// JSON: the text of values, and the errors for members that are missing or of another kind.
#include "io/json.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace mylos::test {
namespace {

using std::string_view_literals::operator""sv;

std::string error_of(const std::function<void()>& read) {
  try {
    read();
    return "good";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
}

TEST(Json, IsWrittenInTheOrderOfTheKeys) {
  const Json list = Json::array({Json(), true, -1, 0.1, "é\n"});
  const Json value = Json::object({{"z", 1}, {"list", list}, {"none", Json::object({})}});
  EXPECT_EQ(value.dump(), R"({"list":[null,true,-1,0.1,"é\n"],"none":{},"z":1})");
  EXPECT_EQ(value.without("list").dump(2), "{\n  \"none\": {},\n  \"z\": 1\n}");
  EXPECT_EQ(list.ascii(), R"([null,true,-1,0.1,"\u00e9\n"])");
  EXPECT_EQ(Json::object({{"largest", UINT64_MAX}, {"smallest", INT64_MIN}}).dump(),
            R"({"largest":18446744073709551615,"smallest":-9223372036854775808})");
}

TEST(Json, IsReadBack) {
  const Json value =
      Json::parse(R"({"flag": true, "count": 3, "rate": 0.5, "name": "a", "list": [{"x": 1}, {"x": 2}]})");
  EXPECT_TRUE(value.boolean("flag"));
  EXPECT_EQ(value.integer("count"), 3);
  EXPECT_EQ(value.real("count"), 3.0);
  EXPECT_EQ(value.real("rate"), 0.5);
  EXPECT_EQ(value.text("name"), "a");
  ASSERT_EQ(value.elements("list").size(), 2U);
  EXPECT_EQ(value.elements("list")[1].integer("x"), 2);
  EXPECT_EQ(Json::object(value.members()).dump(), value.dump());
}

TEST(Json, NamesTheKeyOfWhatCannotBeRead) {
  const Json value = Json::parse(R"({"count": 0.5, "inner": {}})");
  EXPECT_EQ(error_of([&] { value.integer("count"); }), "\"count\" is not an integer");
  EXPECT_EQ(error_of([&] { value.text("count"); }), "\"count\" is not text");
  EXPECT_EQ(error_of([&] { value.boolean("count"); }), "\"count\" is not true or false");
  EXPECT_EQ(error_of([&] { value.elements("inner"); }), "\"inner\" is not an array");
  EXPECT_EQ(error_of([&] { value.real("inner"); }), "\"inner\" is not a number");
  EXPECT_EQ(error_of([&] { value.at("inner").at("rate"); }), "has no \"rate\"");
  EXPECT_EQ(error_of([&] { Json().at("rate"); }), "has no \"rate\"");
  EXPECT_FALSE(Json(1).has("rate"));
}

TEST(Json, KeepsBytesThatAreNoUtf8) {
  std::string bytes = "caf\xe9/";
  for (int c = 1; c < 256; ++c) bytes += static_cast<char>(c);
  const Json value = Json::object({{"path", bytes}, {"name", "caf\u00e9"}});
  const Json read = Json::parse(value.dump());
  EXPECT_EQ(read.text("path"), bytes);
  EXPECT_EQ(read.text("name"), "caf\u00e9");
  EXPECT_EQ(error_of([] { Json::parse(R"({"path": {"latin1": "\u20ac"}})").text("path"); }),
            "\"latin1\" holds a character above U+00FF");
}

TEST(Json, RefusesDeepNesting) {
  const auto nested = [](int depth, const char* open, const char* close) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += open;
    text += "1";
    for (int i = 0; i < depth; ++i) text += close;
    return text;
  };
  EXPECT_EQ(error_of([&] { Json::parse(nested(64, "[", "]")); }), "good");
  EXPECT_EQ(error_of([&] { Json::parse(nested(64, "{\"[\\\"\": ", "}")); }), "good");
  EXPECT_EQ(error_of([&] { Json::parse(nested(65, "[", "]")); }), "nested deeper than 64 levels");
  EXPECT_EQ(error_of([&] { Json::parse(nested(2'000'000, "[", "]")); }), "nested deeper than 64 levels");
  EXPECT_FALSE(Json::parse_if_whole(nested(2'000'000, "{\"a\":", "}")).has_value());
}

TEST(Json, RefusesWhatIsNotOneWholeValue) {
  for (const std::string_view text : {""sv, "{"sv, "{} {}"sv, "\"\xff\""sv, "{}\0"sv, "{}\0{"sv}) {
    EXPECT_FALSE(Json::parse_if_whole(text)) << text;
    EXPECT_NE(error_of([&] { Json::parse(text); }), "good") << text;
  }
  EXPECT_TRUE(Json::parse_if_whole("null"));
}

TEST(Json, RefusesAKeyTwice) {
  EXPECT_EQ(error_of([] { Json::parse(R"({"a": 1, "b": 2, "a": 1})"); }), "has \"a\" twice");
  EXPECT_EQ(error_of([] { Json::parse(R"([{"x": {"a\n": {}, "\u0061\u000a": 1}}])"); }),
            "has \"a\\n\" twice");
  EXPECT_EQ(error_of([] { Json::parse(R"({"": 1, "": 1})"); }), "has \"\" twice");
  EXPECT_EQ(Json::parse(R"([{"a": {"a": [{"a": 1}, {"a": 2}]}}, {"a": null}])").dump(),
            R"([{"a":{"a":[{"a":1},{"a":2}]}},{"a":null}])");
}

/// Writes down what it is called with.
class Notes final : public JsonVisitor {
 public:
  std::string notes;

  void begin_object() override { notes += "{"; }
  void key(std::string& key) override { notes += key + ":"; }
  void end_object() override { notes += "}"; }
  void begin_array() override { notes += "["; }
  void end_array() override { notes += "]"; }
  void text(std::string& value) override { notes += "'" + value + "' "; }
  void natural(std::uint64_t value) override { notes += std::to_string(value) + " "; }
  void other(const char* kind) override { notes += "(" + std::string(kind) + ") "; }
};

TEST(Json, IsVisitedInItsOrder) {
  Notes visitor;
  visit_json(
      R"({"z": [1, 18446744073709551615, -1, 0.5, 18446744073709551616], "a\u0062": "\u00e9", "z": {},)"
      R"( "n": [null, true, []]})",
      visitor);
  EXPECT_EQ(visitor.notes,
            "{z:[1 18446744073709551615 (a negative number) (a fraction or beyond 64 bits) "
            "(a fraction or beyond 64 bits) ]ab:'é' z:{}n:[(null) (true or false) []]}");
  EXPECT_EQ(error_of([&] { visit_json(std::string(65, '['), visitor); }), "nested deeper than 64 levels");
  for (const std::string_view text : {"[1"sv, "[] []"sv, ""sv, "[]\0"sv})
    EXPECT_NE(error_of([&] { visit_json(text, visitor); }), "good") << text;
}

}  // namespace
}  // namespace mylos::test
