// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/data_sources.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <glob.h>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/watched_call.hpp"
#include "core/base/what_is_at.hpp"
#include "io/tokens/content_kind.hpp"

namespace mylos {

namespace {

/// Whether `text` ends with a backslash that escapes the next character.
bool ends_with_escape(std::string_view text) {
  return (text.size() - (text.find_last_not_of('\\') + 1)) % 2 != 0;
}

/// Positions of `wanted` in `text` that are not escaped by a backslash.
std::vector<std::size_t> unescaped(std::string_view text, char wanted) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == wanted) {
      found.push_back(i);
    }
  }
  return found;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  const std::size_t last = text.find_last_not_of(blanks);
  const bool keeps_blank = last + 1 < text.size() && ends_with_escape(text.substr(0, last + 1));
  return text.substr(first, last + (keeps_blank ? 2 : 1) - first);
}

/// A decimal number, units / 10^digits.
struct Decimal {
  std::int64_t units = 0;
  std::size_t digits = 0;
};

/// Parses "0.25", "+3" and "1e-3", with at most nine digits on either side of the point.
std::optional<Decimal> parse_decimal(std::string_view text) {
  constexpr std::ptrdiff_t most_digits = 9;
  const auto without_plus = [](std::string_view number) {
    return number.substr(number.starts_with('+') ? 1 : 0);
  };
  text = without_plus(text);
  int exponent = 0;
  if (const std::size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    const std::string_view power = without_plus(text.substr(e + 1));
    const auto [end, error] = std::from_chars(power.data(), power.data() + power.size(), exponent);
    if (error != std::errc() || end != power.data() + power.size() || exponent < -2 * most_digits ||
        exponent > 2 * most_digits)
      return std::nullopt;
    text = text.substr(0, e);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  const std::string_view fraction = text.substr(std::min(point + 1, text.size()));
  std::string digits = std::string(text.substr(0, point)) + std::string(fraction);
  if (digits.empty()) return std::nullopt;
  if (!std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c) != 0; })) return std::nullopt;
  std::ptrdiff_t decimals = std::ssize(fraction) - exponent;
  if (decimals < 0) digits.append(static_cast<std::size_t>(-std::exchange(decimals, 0)), '0');
  if (decimals > most_digits || std::ssize(digits) - decimals > most_digits) return std::nullopt;
  Decimal decimal{.digits = static_cast<std::size_t>(decimals)};
  std::from_chars(digits.data(), digits.data() + digits.size(), decimal.units);
  return decimal;
}

/// An entry of the list.
struct Entry {
  std::string text;
  DataPattern pattern;
  std::optional<Decimal> weight;
};

Entry parse_entry(std::string_view text) {
  constexpr std::string_view nanogpt = "nanogpt=";
  Entry entry{.text = std::string(text), .pattern = {}, .weight = {}};
  std::string_view name = text;
  if (const auto colons = unescaped(text, ':'); !colons.empty()) {
    const std::string_view weight = trimmed(text.substr(colons.back() + 1));
    entry.weight = parse_decimal(weight);
    if (!entry.weight || entry.weight->units == 0) {
      fail(ExitCode::usage,
           "{}: \"{}\" is not a weight; a weight is a positive number such as 0.25, and a colon within a "
           "name is written \\:",
           text, weight);
    }
    name = trimmed(text.substr(0, colons.back()));
    if (const auto more = unescaped(name, ':'); !more.empty())
      fail(ExitCode::usage, "{} has two colons; a colon within a name is written \\:", text);
  }
  if (name.starts_with(nanogpt)) {
    entry.pattern.format = TokenFormat::nanogpt;
    name = trimmed(name.substr(nanogpt.size()));
  }
  if (name.empty()) {
    fail(ExitCode::usage, "\"{}\" names no file; a comma within a name is written \\,", text);
  }
  if (ends_with_escape(name)) {
    fail(ExitCode::usage, "{} ends with a backslash; one within a name is written \\\\", text);
  }
  entry.pattern.glob = expand_glob(name);
  return entry;
}

/// The weights of `entries` as whole numbers without a common divisor.
std::vector<std::int64_t> whole_weights(std::string_view text, const std::vector<Entry>& entries) {
  std::size_t digits = 0;
  for (const Entry& entry : entries) digits = std::max(digits, entry.weight->digits);
  std::vector<std::int64_t> weights;
  std::int64_t divisor = 0;
  for (const Entry& entry : entries) {
    std::int64_t units = entry.weight->units;
    for (std::size_t i = entry.weight->digits; i < digits; ++i) units *= 10;
    weights.push_back(units);
    divisor = std::gcd(divisor, units);
  }
  std::int64_t sum = 0;
  for (std::int64_t& weight : weights) {
    weight /= divisor;
    sum += std::min(weight, most_weight_units + 1);
  }
  if (sum > most_weight_units) {
    fail(ExitCode::usage,
         "{}: as whole numbers without a common divisor the weights add up to more than {}; use fewer digits",
         text, most_weight_units);
  }
  return weights;
}

std::string without_backslashes(std::string_view glob) {
  std::string name;
  for (std::size_t i = 0; i < glob.size(); ++i) {
    if (glob[i] == '\\' && i + 1 < glob.size()) ++i;
    name += glob[i];
  }
  return name;
}

bool is_one_name(std::string_view glob) {
  return unescaped(glob, '*').empty() && unescaped(glob, '?').empty() && unescaped(glob, '[').empty();
}

std::vector<std::string> matches_of(const std::string& pattern) {
  const WatchedCall call(CallKind::io, "glob", pattern);
  glob_t matches{};
  const int problem = ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &matches);
  const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&matches, ::globfree);
  if (problem == GLOB_ABORTED && errno != ENOENT)
    fail(ExitCode::io, "cannot search for files that match {}: {}", pattern, std::strerror(errno));
  if (problem == GLOB_NOSPACE) fail(ExitCode::internal, "out of memory");
  std::vector<std::string> names;
  if (problem == 0) names.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::vector<DataSource> parse_sources(std::string_view text) {
  std::vector<Entry> entries;
  std::size_t begin = 0;
  std::vector<std::size_t> ends = unescaped(text, ',');
  ends.push_back(text.size());
  for (const std::size_t end : ends) {
    entries.push_back(parse_entry(trimmed(text.substr(begin, end - begin))));
    begin = end + 1;
  }
  const auto is_weighted = [](const Entry& entry) { return entry.weight.has_value(); };
  if (std::ranges::none_of(entries, is_weighted)) {
    DataSource all{.text = std::string(trimmed(text)), .patterns = {}};
    for (Entry& entry : entries) all.patterns.push_back(std::move(entry.pattern));
    return {all};
  }
  if (const auto open = std::ranges::find_if_not(entries, is_weighted); open != entries.end()) {
    fail(ExitCode::usage, "{}: \"{}\" has no weight, but others have; give every source a weight, or none",
         text, open->text);
  }
  if (entries.size() > most_sources)
    fail(ExitCode::usage, "{} weighted sources; at most {} are allowed", entries.size(), most_sources);
  const std::vector<std::int64_t> weights = whole_weights(text, entries);
  std::vector<DataSource> sources;
  for (std::size_t i = 0; i < entries.size(); ++i)
    sources.push_back({entries[i].text, {std::move(entries[i].pattern)}, weights[i]});
  return sources;
}

std::vector<DataSource> parse_validation_sources(std::string_view text) {
  std::vector<DataSource> sources = parse_sources(text);
  if (sources.size() > 1) {
    fail(ExitCode::usage, "{} has weights, but an evaluation reads each file once; leave the weights out",
         text);
  }
  return sources;
}

namespace {

/// Removes the files from `names` that mylos writes next to token files; returns how many there are of each
/// kind, or "".
std::string leave_out_own_files(std::vector<std::string>& names) {
  std::map<std::string_view, std::int64_t> counts;
  std::erase_if(names, [&](const std::string& name) {
    if (name.ends_with(".bin")) return false;  // most are: they are not opened here
    const std::string_view kind = own_kind(name);
    if (kind.empty() || kind == "token file") return false;
    ++counts[kind];
    return true;
  });
  std::vector<std::string> parts;
  for (const auto& [kind, count] : counts) parts.push_back(counted_kind(count, kind));
  return join(parts, ", ");
}

}  // namespace

std::vector<DataFile> files_of(const DataSource& source, std::vector<std::string>* left_out) {
  std::vector<DataFile> files;
  for (const DataPattern& pattern : source.patterns) {
    std::vector<std::string> names = matches_of(pattern.glob);
    if (!is_one_name(pattern.glob)) {
      const std::string own = leave_out_own_files(names);
      if (!own.empty() && left_out != nullptr)
        left_out->push_back(fmt::format("{}: left out: {}", pattern.glob, own));
    }
    if (names.empty()) {
      const std::string name = without_backslashes(pattern.glob);
      const std::string present = is_one_name(pattern.glob) ? what_is_at(name) : "";
      if (present.empty()) fail(ExitCode::usage, "{} matches no file", name);
      if (present == "nothing") fail(ExitCode::usage, "{} does not exist", name);
      fail(ExitCode::usage, "{} cannot be used: there is {}", name, present);
    }
    for (const std::string& name : names) files.push_back({name, pattern.format});
  }
  return files;
}

}  // namespace mylos
