// SPDX-License-Identifier: BSD-3-Clause
// The factors of a dropout layer.
#pragma once

#include "backends/compute_kokkos/random_words.hpp"

namespace mylos::compute_kokkos {

/// The number of elements that `keep_factors` draws at a time.
inline constexpr int dropout_block = words_at_once;

/// factors[i] = 1 / (1 - p) if element 4 * group + i of `sample` is kept, else 0, for 0 <= i < dropout_block.
KOKKOS_FORCEINLINE_FUNCTION void keep_factors(const Dropout& dropout, std::int64_t step, std::int64_t sample,
                                              std::uint64_t group, float* factors) {
  std::uint32_t words[dropout_block];
  random_words(dropout.key, group, static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(step),
               words);
  const float scale = 1.0F / (1.0F - dropout.probability);
  for (int i = 0; i < dropout_block; ++i)
    factors[i] = uniform01(words[i]) >= dropout.probability ? scale : 0.0F;
}

/// factors[i] for the elements first .. first + count - 1 of `sample`.
KOKKOS_FORCEINLINE_FUNCTION void keep_factors(const Dropout& dropout, std::int64_t step, std::int64_t sample,
                                              std::int64_t first, int count, float* factors) {
  std::int64_t element = first - first % 4;
  if (element == first && count == dropout_block) {
    keep_factors(dropout, step, sample, static_cast<std::uint64_t>(element) / 4, factors);
    return;
  }
  while (element < first + count) {
    float block[dropout_block];
    keep_factors(dropout, step, sample, static_cast<std::uint64_t>(element) / 4, block);
    const std::int64_t begin = element > first ? element : first;
    const std::int64_t end =
        element + dropout_block < first + count ? element + dropout_block : first + count;
    for (std::int64_t e = begin; e < end; ++e) factors[e - first] = block[e - element];
    element += dropout_block;
  }
}

}  // namespace mylos::compute_kokkos
