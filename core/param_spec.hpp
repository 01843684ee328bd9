// SPDX-License-Identifier: BSD-3-Clause
// ParamSpec: one deck parameter, declared once; parsing, help and docs/deck.md are derived from it.
#pragma once

#include <cstdint>
#include <limits>

namespace mylos {

enum class ParamType : std::uint8_t { integer, real, boolean, text, choice };

/// One parameter of a deck. Plain data, because plugins export arrays of it. Integers and reals lie in [min,
/// max]. `choices` is "a|b|c" for ParamType::choice. A null `default_value` makes the parameter required.
struct ParamSpec {
  const char* section;
  const char* name;
  ParamType type;
  const char* default_value;
  double min;
  double max;
  const char* choices;
  const char* unit;
  const char* doc;
};

inline constexpr double unbounded = std::numeric_limits<double>::infinity();

constexpr ParamSpec integer_param(const char* section, const char* name, const char* default_value,
                                  double min, double max, const char* unit, const char* doc) {
  return {section, name, ParamType::integer, default_value, min, max, "", unit, doc};
}
constexpr ParamSpec real_param(const char* section, const char* name, const char* default_value, double min,
                               double max, const char* unit, const char* doc) {
  return {section, name, ParamType::real, default_value, min, max, "", unit, doc};
}
constexpr ParamSpec boolean_param(const char* section, const char* name, const char* default_value,
                                  const char* doc) {
  return {section, name, ParamType::boolean, default_value, -unbounded, unbounded, "", "", doc};
}
constexpr ParamSpec text_param(const char* section, const char* name, const char* default_value,
                               const char* doc) {
  return {section, name, ParamType::text, default_value, -unbounded, unbounded, "", "", doc};
}
constexpr ParamSpec choice_param(const char* section, const char* name, const char* default_value,
                                 const char* choices, const char* doc) {
  return {section, name, ParamType::choice, default_value, -unbounded, unbounded, choices, "", doc};
}

}  // namespace mylos
