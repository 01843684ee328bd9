// SPDX-License-Identifier: BSD-3-Clause
// ParamValues: the checked values of a deck, by "section.name".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "core/base/error.hpp"

namespace mylos {

using ParamValue = std::variant<std::int64_t, double, bool, std::string>;

/// Every declared parameter with its final value. Reading an undeclared parameter, or a parameter as a type
/// other than the declared one, is a defect and throws ExitCode::internal.
class ParamValues {
 public:
  void set(const std::string& key, ParamValue value) { values_[key] = std::move(value); }

  std::int64_t integer(std::string_view key) const { return get<std::int64_t>(key); }
  double real(std::string_view key) const { return get<double>(key); }
  bool boolean(std::string_view key) const { return get<bool>(key); }
  const std::string& text(std::string_view key) const { return get<std::string>(key); }

  const std::map<std::string, ParamValue, std::less<>>& all() const { return values_; }

 private:
  template <class T>
  const T& get(std::string_view key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) fail(ExitCode::internal, "deck parameter {} was never declared", key);
    const T* value = std::get_if<T>(&found->second);
    if (value == nullptr) fail(ExitCode::internal, "deck parameter {} has another type", key);
    return *value;
  }

  std::map<std::string, ParamValue, std::less<>> values_;
};

}  // namespace mylos
