// SPDX-License-Identifier: BSD-3-Clause
// AlgorithmChoice: which algorithm a collective uses, by the size of its payload; what comm.algorithm says.
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
  /// `algorithm` applies to what is larger than before and below `below` bytes.
  struct Range {
    Algorithm algorithm;
    std::uint64_t below;

    bool operator==(const Range&) const = default;
  };
  static constexpr std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
  /// In order of size; the last one ends at `everything`.
  using Ranges = std::vector<Range>;

  /// One algorithm for all collectives and sizes.
  explicit AlgorithmChoice(Algorithm algorithm) { ranges_.fill({{algorithm, everything}}); }

  /// Reads an algorithm's name, or several in order of size with the bytes below which each but the last
  /// applies: "tree<65536,ring". What stands after a collective's name and a colon is for that one:
  /// "all_reduce:tree<65536,ring;broadcast:tree;ring". The rest follows the part without a name, native where
  /// there is none. Throws ExitCode::usage.
  static AlgorithmChoice parse(std::string_view text);

  void set(Operation operation, Ranges ranges) {
    ranges_[static_cast<std::size_t>(operation)] = std::move(ranges);
  }

  /// `operation` is one of `scheduled_operations`.
  Algorithm of(Operation operation, std::uint64_t payload_bytes) const;
  /// Whether the backend does all collectives itself.
  bool is_native() const;
  /// Whether `algorithm` is the one of some collective and payload.
  bool uses(Algorithm algorithm) const;
  /// What `parse` reads.
  std::string text() const;

 private:
  std::array<Ranges, scheduled_operations.size()> ranges_;  // by Operation
};

}  // namespace mylos
