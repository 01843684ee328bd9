// SPDX-License-Identifier: BSD-3-Clause
// Joins and splits lists in text. fmt's own join is slow to compile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace mylos {

/// Returns the values as fmt formats them, separated by `separator`.
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

/// Returns the parts of `text` between separators; parts may be empty.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Returns the lines of `text` without their newlines; the last line may lack a newline.
inline std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines = split(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

}  // namespace mylos
