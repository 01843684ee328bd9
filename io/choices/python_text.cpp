// SPDX-License-Identifier: BSD-3-Clause
#include "io/choices/python_text.hpp"

#include <algorithm>
#include <span>

#include "core/base/error.hpp"
#include "io/choices/unicode_case.hpp"
#include "io/utf8.hpp"

namespace mylos::python {

namespace {

constexpr char32_t capital_sigma = 0x3a3;
constexpr char32_t final_sigma = 0x3c2;

/// The first entry that does not end before `point`.
template <class T>
const T* entry_of(std::span<const T> entries, char32_t T::*last, char32_t point) {
  const auto found = std::ranges::lower_bound(entries, point, {}, last);
  return found == entries.end() ? nullptr : &*found;
}

bool is_in(std::span<const CodePointRange> ranges, char32_t point) {
  const CodePointRange* range = entry_of(ranges, &CodePointRange::last, point);
  return range != nullptr && range->first <= point;
}

std::u32string points_of(std::string_view text) {
  std::u32string points;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    const Utf8Char character = decode_utf8(at, end);
    require(character.bytes > 0, "text is UTF-8");
    points += char32_t{character.point};
    at += character.bytes;
  }
  return points;
}

/// Appends what `point` becomes.
void append_case(char32_t point, std::span<const CaseRun> runs, std::span<const CaseExpansion> expansions,
                 std::string& text) {
  const CaseExpansion* expansion = entry_of(expansions, &CaseExpansion::from, point);
  if (expansion != nullptr && expansion->from == point) {
    for (const char32_t to : expansion->to) {
      if (to != 0) text += encode_utf8(to);
    }
    return;
  }
  const CaseRun* run = entry_of(runs, &CaseRun::last, point);
  if (run != nullptr && run->first <= point && (point - run->first) % run->step == 0)
    point = static_cast<char32_t>(static_cast<std::int32_t>(point) + run->distance);
  text += encode_utf8(point);
}

/// Whether the first of `points` that is not passed over is a letter with case.
template <class Points>
bool begins_with_case(const Points& points) {
  const auto found =
      std::ranges::find_if(points, [](char32_t point) { return !is_in(case_ignorable_ranges, point); });
  return found != points.end() && is_in(cased_ranges, *found);
}

/// Whether the sigma at `index` ends a word (Unicode, table 3-17: Final_Sigma).
bool is_final(const std::u32string& points, std::size_t index) {
  const std::span<const char32_t> all(points);
  const auto before = all.first(index);
  return begins_with_case(std::ranges::subrange(before.rbegin(), before.rend())) &&
         !begins_with_case(all.subspan(index + 1));
}

}  // namespace

std::size_t size_without_spaces(std::string_view text) {
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xc0U) == 0x80U) --last;
    if (!is_in(python_spaces, decode_utf8(text.data() + last, text.data() + text.size()).point)) break;
    text = text.substr(0, last);
  }
  return text.size();
}

std::string_view strip(std::string_view text) {
  text = text.substr(0, size_without_spaces(text));
  while (!text.empty()) {
    const Utf8Char first = decode_utf8(text.data(), text.data() + text.size());
    require(first.bytes > 0, "text is UTF-8");
    if (!is_in(python_spaces, first.point)) break;
    text.remove_prefix(first.bytes);
  }
  return text;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(from, at);
    result += text.substr(at, found - at);
    if (found == std::string_view::npos) return result;
    result += to;
    at = found + from.size();
  }
}

std::string capitalize(std::string_view text) {
  const std::u32string points = points_of(text);
  std::string result;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i == 0) {
      append_case(points[i], title_runs, title_expansions, result);
    } else if (points[i] == capital_sigma && is_final(points, i)) {
      result += encode_utf8(final_sigma);
    } else {
      append_case(points[i], lower_runs, lower_expansions, result);
    }
  }
  return result;
}

std::int64_t length(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; });
}

}  // namespace mylos::python
