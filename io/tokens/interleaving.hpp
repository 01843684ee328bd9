// SPDX-License-Identifier: BSD-3-Clause
// Interleaving: which of several weighted sources each sample of a run is from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mylos {

/// Of the first n samples source s has more than n w - 1 and less than n w + 1, for every n and its share w.
///
/// The order repeats after as many samples as the weights, whole numbers, add up to. Sample j of a source may
/// come at ⌊j / w⌋ and must before ⌈(j + 1) / w⌉; the earliest such deadline goes first (Baruah et al.,
/// "Proportionate progress", 1996, of which one processor's case is this).
class Interleaving {
 public:
  /// Weights of 1 and more.
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
