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

/// Throws if values are nested too deeply: recursive functions could overflow the stack.
void check_depth(std::string_view text) {
  constexpr int max_depth = 64;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) fail(ExitCode::bad_data, "nested deeper than {} levels", max_depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
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
  check_depth(text);
  try {
    return Json(Value{nlohmann::json::parse(text)});
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::bad_data, "{}", error.what());
  }
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

}  // namespace mylos
