// SPDX-License-Identifier: BSD-3-Clause
// The factors of a dropout layer, a vector of Philox counters at a time.
#pragma once

#include "backends/compute_kokkos/lanes.hpp"

namespace mylos {

/// Elements that `keep_factors` draws at once.
inline constexpr int dropout_block = 4 * width;

/// factors[i] = 1 / (1 - p) where element 4 * group + i of `sample` is kept, else 0; `dropout_block` of them.
KOKKOS_FORCEINLINE_FUNCTION void keep_factors(const Dropout& dropout, std::int64_t step, std::int64_t sample,
                                              std::uint64_t group, float* factors) {
  std::uint32_t words[4][width];
  for (int l = 0; l < width; ++l) {
    const std::uint64_t counter = group + static_cast<std::uint64_t>(l);
    const PhiloxBlock block =
        philox(dropout.key, static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32U),
               static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(step));
    for (int j = 0; j < 4; ++j) words[j][l] = block.x[j];
  }
  const float scale = 1.0F / (1.0F - dropout.probability);
  for (int l = 0; l < width; ++l) {
    for (int j = 0; j < 4; ++j)
      factors[4 * l + j] = uniform01(words[j][l]) >= dropout.probability ? scale : 0.0F;
  }
}

/// factors[i] for the elements first .. first + count - 1 of `sample`.
KOKKOS_FORCEINLINE_FUNCTION void keep_factors(const Dropout& dropout, std::int64_t step, std::int64_t sample,
                                              std::int64_t first, int count, float* factors) {
  std::int64_t element = first - first % 4;
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

}  // namespace mylos
