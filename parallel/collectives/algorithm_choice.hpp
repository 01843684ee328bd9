// SPDX-License-Identifier: BSD-3-Clause
// AlgorithmChoice: the algorithm of each collective by payload size, as parsed from comm.algorithm.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/collectives/collective_schedule.hpp"

namespace mylos {

/// Payload is counted as in TrafficCounter: the buffer of all_reduce, broadcast and reduce, the input of
/// reduce_scatter and all_to_all, the output of all_gather.
class AlgorithmChoice {
 public:
  /// `algorithm` applies to payloads below `below` bytes that no earlier range covers.
  struct Range {
    Algorithm algorithm;
    std::uint64_t below;

    bool operator==(const Range&) const = default;
  };
  static constexpr std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
  /// In ascending order of `below`, which is `everything` in the last range.
  using Ranges = std::vector<Range>;

  /// One algorithm for all collectives and sizes.
  explicit AlgorithmChoice(Algorithm algorithm) { ranges_.fill({{algorithm, everything}}); }

  /// Parses a value of comm.algorithm other than "auto": the name of an algorithm, or several names in
  /// ascending order of payload. Each name except the last is followed by the number of bytes below which it
  /// applies: "tree<65536,ring". Semicolons separate parts. A part that begins with the name of a collective
  /// and a colon applies to that collective: "all_reduce:tree<65536,ring;broadcast:tree;ring". The part
  /// without a name applies to the other collectives, which are native if there is no such part. Throws
  /// ExitCode::usage.
  static AlgorithmChoice parse(std::string_view text);

  void set(CommOperation operation, Ranges ranges) {
    ranges_[static_cast<std::size_t>(operation)] = std::move(ranges);
  }

  /// `operation` is one of `scheduled_operations`.
  Algorithm of(CommOperation operation, std::uint64_t payload_bytes) const;
  /// Whether every range is native: the backend runs all collectives itself.
  bool is_native() const;
  /// Whether a range of some collective has `algorithm`.
  bool uses(Algorithm algorithm) const;
  /// A text from which `parse` makes the same choice.
  std::string text() const;

 private:
  std::array<Ranges, scheduled_operations.size()> ranges_;  // by CommOperation
};

}  // namespace mylos
