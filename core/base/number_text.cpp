// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/number_text.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "core/base/error.hpp"

namespace mylos {

namespace {

/// Returns `text` without blanks around it and without a plus sign, which std::from_chars does not take.
std::string_view bare(std::string_view text) {
  constexpr std::string_view blanks = " \t";
  const std::size_t first = std::min(text.find_first_not_of(blanks), text.size());
  text = text.substr(first, text.find_last_not_of(blanks) + 1 - first);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

/// Returns the number that is all of `text`, and whether it fits; empty if `text` is not a number.
template <class Number>
std::optional<std::pair<Number, bool>> whole_of(std::string_view text, auto... base) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, number, base...);
  if (stop != end || status == std::errc::invalid_argument) return std::nullopt;
  return std::pair{number, status != std::errc::result_out_of_range};
}

std::string without(std::string_view text, std::string_view unwanted) {
  std::string rest(text);
  std::erase_if(rest, [&](char c) { return unwanted.find(c) != std::string_view::npos; });
  return rest;
}

/// Returns "; write NUMBER" for a text that is probably a number in another notation, otherwise "".
std::string advice(std::string_view text, std::string_view unit, bool is_integer) {
  const auto is_number = [&](const std::string& guess) {
    const auto number = whole_of<double>(guess);
    return number && number->second && std::isfinite(number->first);
  };
  const std::string plain = without(text, "_,'");  // separators of thousands
  std::string point(text);                         // a decimal comma
  std::ranges::replace(point, ',', '.');
  if (!is_integer && point != text && is_number(point)) return "; write " + point;
  if (plain != text && is_number(plain)) return "; write " + plain;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    if (const auto number = whole_of<std::int64_t>(text.substr(2), 16); number && number->second)
      return fmt::format("; write {}", number->first);
  }
  const bool has_digit = !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) != 0;
  return has_digit && !unit.empty() ? fmt::format("; write a plain number, in {}", unit) : "";
}

}  // namespace

double parse_real(std::string_view text, std::string_view unit) {
  text = bare(text);
  const auto number = whole_of<double>(text);
  if (!number) fail(ExitCode::usage, "is not a number{}", advice(text, unit, false));
  if (!number->second) fail(ExitCode::usage, "does not fit a double");
  if (!std::isfinite(number->first)) fail(ExitCode::usage, "is not a finite number");
  return number->first;
}

std::optional<std::int64_t> parse_integer(std::string_view text, std::string_view unit) {
  text = bare(text);
  if (const auto number = whole_of<std::int64_t>(text))
    return number->second ? std::optional(number->first) : std::nullopt;
  constexpr double exact = 9007199254740992.0;  // 2^53
  const auto real = whole_of<double>(text);
  const bool is_whole = real && std::trunc(real->first) == real->first && std::isfinite(real->first);
  if (!is_whole) fail(ExitCode::usage, "is not an integer{}", real ? "" : advice(text, unit, true));
  if (!real->second || std::abs(real->first) > exact) return std::nullopt;
  return static_cast<std::int64_t>(real->first);
}

std::string decimals(double value, int digits) {
  if (std::isnan(value)) return "nan";  // without the sign that x86 gives it
  constexpr double most = 1e9;
  return std::abs(value) < most || !std::isfinite(value) ? fmt::format("{:.{}f}", value, digits)
                                                         : fmt::format("{:.{}e}", value, digits);
}

}  // namespace mylos
