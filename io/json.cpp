// SPDX-License-Identifier: BSD-3-Clause
#include "io/json.hpp"

#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "io/utf8.hpp"

namespace mylos {

struct Json::Value {
  nlohmann::json json;

  const nlohmann::json& member(std::string_view key) const {
    const auto found = json.find(key);
    if (found == json.end()) fail(ExitCode::bad_data, "has no \"{}\"", key);
    return *found;
  }

  /// The member `key`; throws unless it satisfies `is_kind`.
  const nlohmann::json& member(std::string_view key, bool (nlohmann::json::*is_kind)() const noexcept,
                               const char* kind) const {
    const nlohmann::json& found = member(key);
    if (!(found.*is_kind)()) fail(ExitCode::bad_data, "\"{}\" is not {}", key, kind);
    return found;
  }
};

namespace {

constexpr const char* bytes_key = "latin1";

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::uint32_t size = decode_utf8(text.data(), text.data() + text.size()).bytes;
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

nlohmann::json text_json(std::string_view text) {
  if (is_utf8(text)) return text;
  std::string wide;  // each byte as a character, in UTF-8
  for (const char c : text) wide += encode_utf8(static_cast<unsigned char>(c));
  return {{bytes_key, wide}};
}

/// The bytes that the characters of `wide`, U+0000 to U+00FF, stand for.
std::string bytes_of(std::string_view wide) {
  std::string bytes;
  while (!wide.empty()) {
    const auto [point, size] = decode_utf8(wide.data(), wide.data() + wide.size());
    if (size == 0 || point > 0xff) fail(ExitCode::bad_data, "\"latin1\" holds a character above U+00FF");
    bytes += static_cast<char>(point);
    wide.remove_prefix(size);
  }
  return bytes;
}

/// Events of the parser. Refuses deep nesting: recursive functions could overflow the stack.
class Events : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    fail(ExitCode::bad_data, "{}", error.what());
  }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON has none

 protected:
  void enter() {
    constexpr int max_depth = 64;
    if (++depth_ > max_depth) fail(ExitCode::bad_data, "nested deeper than {} levels", max_depth);
  }
  void leave() { --depth_; }

 private:
  int depth_ = 0;
};

/// Builds a tree. The library's own parser keeps the last of several values of a key.
class TreeBuilder final : public Events {
 public:
  nlohmann::json take() { return std::move(root_); }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value) != nullptr; }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool start_object(std::size_t /*size*/) override { return open(nlohmann::json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*size*/) override { return open(nlohmann::json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    const auto [member, is_new] = open_.back()->emplace(key, nullptr);
    if (!is_new) fail(ExitCode::bad_data, "has {} twice", nlohmann::json(key).dump());
    member_ = &*member;
    return true;
  }

 private:
  nlohmann::json* add(nlohmann::json value) {
    nlohmann::json* place = &root_;
    if (!open_.empty()) {
      if (open_.back()->is_array()) open_.back()->push_back(nullptr);
      place = open_.back()->is_array() ? &open_.back()->back() : member_;
    }
    *place = std::move(value);
    return place;
  }
  bool open(nlohmann::json value) {
    enter();
    open_.push_back(add(std::move(value)));
    return true;
  }
  bool close() {
    leave();
    open_.pop_back();
    return true;
  }

  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // the objects and arrays that have begun, from the root
  nlohmann::json* member_ = nullptr;   // the value of the last key
};

class VisitorEvents final : public Events {
 public:
  explicit VisitorEvents(JsonVisitor& visitor) : visitor_(visitor) {}

  bool null() override { return visitor_.other("null"), true; }
  bool boolean(bool /*value*/) override { return visitor_.other("true or false"), true; }
  bool number_integer(number_integer_t /*value*/) override {
    return visitor_.other("a negative number"), true;
  }
  bool number_unsigned(number_unsigned_t value) override { return visitor_.natural(value), true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return visitor_.other("a fraction or beyond 64 bits"), true;
  }
  bool string(string_t& value) override { return visitor_.text(value), true; }
  bool start_object(std::size_t /*size*/) override { return enter(), visitor_.begin_object(), true; }
  bool key(string_t& key) override { return visitor_.key(key), true; }
  bool end_object() override { return leave(), visitor_.end_object(), true; }
  bool start_array(std::size_t /*size*/) override { return enter(), visitor_.begin_array(), true; }
  bool end_array() override { return leave(), visitor_.end_array(), true; }

 private:
  JsonVisitor& visitor_;
};

/// Throws unless `text` is exactly one value.
void parse_events(std::string_view text, Events& events) {
  // The library takes a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    fail(ExitCode::bad_data, "holds a NUL byte at {}", nul);
  nlohmann::json::sax_parse(text, &events);
}

}  // namespace

Json::Json(Value value) : value_(std::make_shared<const Value>(std::move(value))) {}
Json::Json() : Json(Value{}) {}
Json::Json(bool value) : Json(Value{value}) {}
Json::Json(int value) : Json(Value{value}) {}
Json::Json(std::int64_t value) : Json(Value{value}) {}
Json::Json(std::uint64_t value) : Json(Value{value}) {}
Json::Json(double value) : Json(Value{value}) {}
Json::Json(const char* value) : Json(std::string_view(value)) {}
Json::Json(const std::string& value) : Json(std::string_view(value)) {}
Json::Json(std::string_view value) : Json(Value{text_json(value)}) {}

Json Json::object(const std::vector<Member>& members) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, member] : members) json[key] = member.value_->json;
  return Json(Value{std::move(json)});
}

Json Json::array(const std::vector<Json>& elements) {
  nlohmann::json json = nlohmann::json::array();
  for (const Json& element : elements) json.push_back(element.value_->json);
  return Json(Value{std::move(json)});
}

Json Json::parse(std::string_view text) {
  TreeBuilder builder;
  parse_events(text, builder);
  return Json(Value{builder.take()});
}

std::optional<Json> Json::parse_if_whole(std::string_view text) {
  try {
    return parse(text);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string Json::dump(int indent) const {
  return value_->json.dump(indent);
}

std::string Json::ascii() const {
  return value_->json.dump(-1, ' ', true);
}

bool Json::is_object() const {
  return value_->json.is_object();
}

bool Json::has(std::string_view key) const {
  return value_->json.contains(key);
}

Json Json::at(std::string_view key) const {
  return Json(Value{value_->member(key)});
}

bool Json::boolean(std::string_view key) const {
  return value_->member(key, &nlohmann::json::is_boolean, "true or false").get<bool>();
}

std::int64_t Json::integer(std::string_view key) const {
  return value_->member(key, &nlohmann::json::is_number_integer, "an integer").get<std::int64_t>();
}

double Json::real(std::string_view key) const {
  return value_->member(key, &nlohmann::json::is_number, "a number").get<double>();
}

std::string Json::text(std::string_view key) const {
  const nlohmann::json& member = value_->member(key);
  if (member.is_object() && member.size() == 1 && member.contains(bytes_key) && member[bytes_key].is_string())
    return bytes_of(member[bytes_key].get<std::string>());
  return value_->member(key, &nlohmann::json::is_string, "text").get<std::string>();
}

std::vector<Json> Json::elements(std::string_view key) const {
  std::vector<Json> elements;
  for (const nlohmann::json& element : value_->member(key, &nlohmann::json::is_array, "an array"))
    elements.push_back(Json(Value{element}));
  return elements;
}

std::vector<std::int64_t> Json::integers(std::string_view key) const {
  std::vector<std::int64_t> integers;
  for (const nlohmann::json& element : value_->member(key, &nlohmann::json::is_array, "an array")) {
    if (!element.is_number_integer()) fail(ExitCode::bad_data, "\"{}\" does not hold integers", key);
    integers.push_back(element.get<std::int64_t>());
  }
  return integers;
}

std::vector<Json::Member> Json::members() const {
  std::vector<Member> members;
  for (const auto& [key, member] : value_->json.items()) members.emplace_back(key, Json(Value{member}));
  return members;
}

Json Json::without(std::string_view key) const {
  Value rest = *value_;
  rest.json.erase(std::string(key));
  return Json(std::move(rest));
}

void visit_json(std::string_view text, JsonVisitor& visitor) {
  VisitorEvents events(visitor);
  parse_events(text, events);
}

}  // namespace mylos
