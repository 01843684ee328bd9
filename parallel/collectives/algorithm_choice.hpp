// SPDX-License-Identifier: BSD-3-Clause
// AlgorithmChoice: which algorithm a collective uses, by the size of its payload; what comm.algorithm says.
#pragma once

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
  /// One algorithm for all sizes.
  explicit AlgorithmChoice(Algorithm algorithm) : ranges_{{algorithm, everything}} {}

  /// Reads an algorithm's name, or several in order of size with the bytes below which each but the last
  /// applies: "tree<65536,ring". Throws ExitCode::usage.
  static AlgorithmChoice parse(std::string_view text);

  Algorithm of(std::uint64_t payload_bytes) const;
  /// Whether the backend does all collectives itself.
  bool is_native() const { return ranges_.size() == 1 && ranges_[0].algorithm == Algorithm::native; }
  /// Whether `algorithm` is the one of some payload.
  bool uses(Algorithm algorithm) const;
  /// What `parse` reads.
  std::string text() const;

  /// `algorithm` applies to what is larger than before and below `below` bytes.
  struct Range {
    Algorithm algorithm;
    std::uint64_t below;
  };
  static constexpr std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
  /// In order of size; the last one ends at `everything`.
  explicit AlgorithmChoice(std::vector<Range> ranges) : ranges_(std::move(ranges)) {}

 private:
  std::vector<Range> ranges_;
};

}  // namespace mylos
