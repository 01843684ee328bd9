// SPDX-License-Identifier: BSD-3-Clause
// Interleaving: which of several weighted sources each sample of a run comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mylos {

/// A source's share w is its weight divided by the sum of all weights. For every n, the source has more than
/// n w - 1 and less than n w + 1 of the first n samples.
///
/// The order repeats after a period of as many samples as the sum of the weights, which are whole numbers.
/// Sample j of a source is placed no earlier than ⌊j / w⌋ and before ⌈(j + 1) / w⌉; the earliest deadline
/// goes first (the case of one processor in Baruah et al., "Proportionate progress", 1996).
class Interleaving {
 public:
  /// Weights are at least 1.
  explicit Interleaving(std::span<const std::int64_t> weights);

  struct Place {
    std::size_t source = 0;
    std::int64_t index = 0;  ///< counted within the source
  };
  Place at(std::int64_t sample) const;

  /// How many of the first `samples` are from `source`.
  std::int64_t count(std::size_t source, std::int64_t samples) const;

 private:
  std::vector<std::uint16_t> source_of_;           // by place in the period
  std::vector<std::vector<std::int32_t>> places_;  // of each source, ascending
};

}  // namespace mylos
