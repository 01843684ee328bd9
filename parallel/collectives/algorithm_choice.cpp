// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/algorithm_choice.hpp"

#include <algorithm>
#include <charconv>

#include "core/base/join.hpp"

namespace mylos {

namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  fail(ExitCode::usage,
       "comm.algorithm = {}: {}; give auto, native, naive, tree, ring or halving_doubling; or several names, "
       "each except the last with the number of bytes below which it applies, such as tree<65536,ring; or "
       "such a list per collective, such as all_reduce:tree<65536,ring;broadcast:tree",
       text, why);
}

/// Returns the element of `all` that is called `name`, or refuses `text`, because `name` is not `what`.
auto parse_name(std::string_view text, std::string_view name, const auto& all, const char* what) {
  const auto found = std::ranges::find(all, name, [](auto each) { return name_of(each); });
  if (found == all.end()) refuse(text, fmt::format("'{}' is not {}", name, what));
  return *found;
}

CommOperation parse_operation(std::string_view text, std::string_view name) {
  return parse_name(
      text, name, scheduled_operations,
      "a collective: give all_reduce, reduce_scatter, all_gather, broadcast, reduce or all_to_all");
}

std::uint64_t parse_bytes(std::string_view text, std::string_view number) {
  std::uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), bytes);
  if (error != std::errc() || end != number.data() + number.size() || bytes == AlgorithmChoice::everything)
    refuse(text, fmt::format("'{}' is not a byte count", number));
  return bytes;
}

AlgorithmChoice::Ranges parse_ranges(std::string_view text, std::string_view part) {
  AlgorithmChoice::Ranges ranges;
  const std::vector<std::string_view> items = split(part, ',');
  for (const std::string_view& item : items) {
    const std::size_t less = item.find('<');
    const bool is_last = &item == &items.back();
    if (is_last != (less == std::string_view::npos))
      refuse(text, is_last ? "the last algorithm must not have a limit"
                           : fmt::format("'{0}' needs a limit, such as {0}<65536", item));
    const Algorithm algorithm = parse_name(text, item.substr(0, less), all_algorithms, "an algorithm");
    const std::uint64_t below =
        is_last ? AlgorithmChoice::everything : parse_bytes(text, item.substr(less + 1));
    if (!ranges.empty() && ranges.back().below >= below) refuse(text, "the limits must increase");
    ranges.push_back({algorithm, below});
  }
  return ranges;
}

std::string text_of(const AlgorithmChoice::Ranges& ranges) {
  std::vector<std::string> items;
  for (const auto& [algorithm, below] : ranges) {
    items.emplace_back(name_of(algorithm));
    if (below != AlgorithmChoice::everything) items.back() += fmt::format("<{}", below);
  }
  return join(items, ",");
}

}  // namespace

AlgorithmChoice AlgorithmChoice::parse(std::string_view text) {
  AlgorithmChoice choice(Algorithm::native);
  choice.ranges_.fill({});
  Ranges others;
  for (const std::string_view part : split(text, ';')) {
    const std::size_t colon = part.find(':');
    const bool is_named = colon != std::string_view::npos;
    const std::string_view name = is_named ? part.substr(0, colon) : "the part without a name";
    Ranges& ranges =
        is_named ? choice.ranges_[static_cast<std::size_t>(parse_operation(text, name))] : others;
    if (!ranges.empty()) refuse(text, fmt::format("{} is given twice", name));
    ranges = parse_ranges(text, is_named ? part.substr(colon + 1) : part);
  }
  if (others.empty()) others = {{Algorithm::native, everything}};
  for (Ranges& ranges : choice.ranges_) {
    if (ranges.empty()) ranges = others;
  }
  return choice;
}

Algorithm AlgorithmChoice::of(CommOperation operation, std::uint64_t payload_bytes) const {
  const Ranges& ranges = ranges_[static_cast<std::size_t>(operation)];
  return std::ranges::upper_bound(ranges.begin(), ranges.end() - 1, payload_bytes, {}, &Range::below)
      ->algorithm;
}

bool AlgorithmChoice::is_native() const {
  return std::ranges::none_of(all_algorithms,
                              [&](Algorithm each) { return each != Algorithm::native && uses(each); });
}

bool AlgorithmChoice::uses(Algorithm algorithm) const {
  return std::ranges::any_of(ranges_, [&](const Ranges& ranges) {
    return std::ranges::find(ranges, algorithm, &Range::algorithm) != ranges.end();
  });
}

std::string AlgorithmChoice::text() const {
  if (std::ranges::all_of(ranges_, [&](const Ranges& ranges) { return ranges == ranges_[0]; }))
    return text_of(ranges_[0]);
  std::vector<std::string> parts;
  for (const CommOperation operation : scheduled_operations) {
    const std::string ranges = text_of(ranges_[static_cast<std::size_t>(operation)]);
    if (ranges != name_of(Algorithm::native))
      parts.push_back(fmt::format("{}:{}", name_of(operation), ranges));
  }
  return join(parts, ";");
}

}  // namespace mylos
