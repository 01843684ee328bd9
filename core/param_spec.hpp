// SPDX-License-Identifier: BSD-3-Clause
// ParamSpec: one deck parameter, declared once; parsing, help and docs/deck.md are derived from it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace mylos {

enum class ParamType : std::uint8_t { integer, real, boolean, text, choice };

/// What the value of a parameter changes.
enum class Effect : std::uint8_t {
  results,   ///< the numbers that are computed
  samples,   ///< the numbers, and which samples the steps read
  measured,  ///< the numbers, as something is measured and chosen at each start
  speed,     ///< only how fast the same numbers are computed
  place,     ///< only where files lie; what matters of them is compared by content
  records,   ///< only what is written and shown
  end,       ///< only when the run ends or gives up
};

/// What a restart does if the checkpoint's run had another value.
enum class OnRestart : std::uint8_t {
  takes,    ///< goes on with the new value
  ignores,  ///< goes on with what the checkpoint holds
  refuses,  ///< ends with an error
  repeats,  ///< takes `auto` or 0 to mean the choice that the run made, if the layout is the same
};

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
  Effect effect = Effect::results;
  OnRestart on_restart = OnRestart::takes;
  /// What a checkpoint holds that cannot continue with another value; for OnRestart::refuses.
  const char* held = "";
  bool may_differ = false;  ///< ranks may have different values
  /// What `eval` and `generate` take instead of the value of the model's run; null: they take that.
  const char* in_evaluation = nullptr;
  bool is_open_in_evaluation = false;  ///< their command lines may set it

  /// The same with another value of a member. Before its uses: clang needs that of a constant expression.
  template <class T>
  constexpr ParamSpec with(T ParamSpec::*member, T value) const {
    ParamSpec copy = *this;
    copy.*member = value;
    return copy;
  }

  constexpr ParamSpec changes(Effect what) const { return with(&ParamSpec::effect, what); }
  constexpr ParamSpec restart(OnRestart what) const { return with(&ParamSpec::on_restart, what); }
  constexpr ParamSpec refused_by_checkpoint_of(const char* what) const {
    return restart(OnRestart::refuses).with(&ParamSpec::held, what);
  }
  constexpr ParamSpec of_this_rank() const { return with(&ParamSpec::may_differ, true); }
  constexpr ParamSpec evaluated_with(const char* value) const {
    return with(&ParamSpec::in_evaluation, value);
  }
  constexpr ParamSpec open_in_evaluation() const { return with(&ParamSpec::is_open_in_evaluation, true); }
};

/// "section.name".
inline std::string key_of(const ParamSpec& spec) {
  return std::string(spec.section) + "." + spec.name;
}

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
