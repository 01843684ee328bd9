// SPDX-License-Identifier: BSD-3-Clause
#include "io/json.hpp"

#include <nlohmann/json.hpp>

#include "core/base/error.hpp"

namespace mylos {

struct Json::Value {
  nlohmann::json json;

  const nlohmann::json& member(std::string_view key) const {
    const auto found = json.find(key);
    if (found == json.end()) fail(ExitCode::bad_data, "has no \"{}\"", key);
    return *found;
  }

  /// The member, if it has the kind that `is_kind` tells.
  const nlohmann::json& member(std::string_view key, bool (nlohmann::json::*is_kind)() const noexcept,
                               const char* kind) const {
    const nlohmann::json& found = member(key);
    if (!(found.*is_kind)()) fail(ExitCode::bad_data, "\"{}\" is not {}", key, kind);
    return found;
  }
};

Json::Json(Value value) : value_(std::make_shared<const Value>(std::move(value))) {}
Json::Json() : Json(Value{}) {}
Json::Json(bool value) : Json(Value{value}) {}
Json::Json(int value) : Json(Value{value}) {}
Json::Json(std::int64_t value) : Json(Value{value}) {}
Json::Json(std::uint64_t value) : Json(Value{value}) {}
Json::Json(double value) : Json(Value{value}) {}
Json::Json(const char* value) : Json(Value{value}) {}
Json::Json(const std::string& value) : Json(Value{value}) {}
Json::Json(std::string_view value) : Json(Value{value}) {}

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
  try {
    return Json(Value{nlohmann::json::parse(text)});
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::bad_data, "{}", error.what());
  }
}

std::optional<Json> Json::parse_if_whole(std::string_view text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) return std::nullopt;
  return Json(Value{std::move(json)});
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
  return value_->member(key, &nlohmann::json::is_string, "text").get<std::string>();
}

std::vector<Json> Json::elements(std::string_view key) const {
  std::vector<Json> elements;
  for (const nlohmann::json& element : value_->member(key, &nlohmann::json::is_array, "an array"))
    elements.push_back(Json(Value{element}));
  return elements;
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
