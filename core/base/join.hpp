// SPDX-License-Identifier: BSD-3-Clause
// Lists in messages. fmt's own join adds seconds of compile time to each file that uses it.
#pragma once

#include <string>
#include <string_view>

#include <fmt/core.h>

namespace mylos {

/// The values as fmt formats them, separated by `separator`.
std::string join(const auto& values, std::string_view separator) {
  std::string text;
  bool is_first = true;
  for (const auto& value : values) {
    if (!is_first) text += separator;
    is_first = false;
    text += fmt::format("{}", value);
  }
  return text;
}

}  // namespace mylos
