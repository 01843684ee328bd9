// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/algorithm_choice.hpp"

#include <algorithm>
#include <charconv>

namespace mylos {

namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  fail(ExitCode::usage,
       "comm.algorithm = {}: {}; give native, naive, tree, ring or halving_doubling, or several with the "
       "bytes "
       "below which each but the last applies, such as tree<65536,ring",
       text, why);
}

Algorithm parse_name(std::string_view text, std::string_view name) {
  const auto found = std::ranges::find_if(all_algorithms, [&](Algorithm a) { return name_of(a) == name; });
  if (found == all_algorithms.end()) refuse(text, fmt::format("'{}' is no algorithm", name));
  return *found;
}

std::uint64_t parse_bytes(std::string_view text, std::string_view number) {
  std::uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), bytes);
  if (error != std::errc() || end != number.data() + number.size() || bytes == AlgorithmChoice::everything)
    refuse(text, fmt::format("'{}' is no number of bytes", number));
  return bytes;
}

}  // namespace

AlgorithmChoice AlgorithmChoice::parse(std::string_view text) {
  std::vector<Range> ranges;
  std::string_view rest = text;
  for (;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t less = item.find('<');
    const bool is_last = comma == std::string_view::npos;
    if (is_last != (less == std::string_view::npos))
      refuse(text, is_last ? "the last algorithm has no limit" : fmt::format("'{}' needs a limit", item));
    const Algorithm algorithm = parse_name(text, item.substr(0, less));
    ranges.push_back({algorithm, is_last ? everything : parse_bytes(text, item.substr(less + 1))});
    if (ranges.size() > 1 && ranges[ranges.size() - 2].below >= ranges.back().below)
      refuse(text, "the limits must grow");
    if (is_last) return AlgorithmChoice(std::move(ranges));
    rest.remove_prefix(comma + 1);
  }
}

Algorithm AlgorithmChoice::of(std::uint64_t payload_bytes) const {
  for (const Range& range : ranges_) {
    if (payload_bytes < range.below) return range.algorithm;
  }
  return ranges_.back().algorithm;
}

bool AlgorithmChoice::uses(Algorithm algorithm) const {
  return std::ranges::any_of(ranges_, [&](const Range& range) { return range.algorithm == algorithm; });
}

std::string AlgorithmChoice::text() const {
  std::string result;
  for (const Range& range : ranges_) {
    if (!result.empty()) result += ',';
    result += name_of(range.algorithm);
    if (range.below != everything) result += fmt::format("<{}", range.below);
  }
  return result;
}

}  // namespace mylos
