// SPDX-License-Identifier: BSD-3-Clause
// Philox words for consecutive elements, a vector of counters at a time.
#pragma once

#include "backends/compute_kokkos/lanes.hpp"
#include "core/base/rng.hpp"

namespace mylos::compute_kokkos {

/// The number of words that one call of `random_words` draws.
inline constexpr int words_at_once = 4 * width;

/// words[i] = word (i mod 4) of the counter (group + i / 4, c2, c3), for 0 <= i < words_at_once.
#ifdef MYLOS_AVX512_LANES
inline void random_words(PhiloxKey key, std::uint64_t group, std::uint32_t c2, std::uint32_t c3,
                         std::uint32_t* words) {
  // One counter per 64-bit lane. A single instruction multiplies the lower halves of the lanes; without the
  // intrinsic, compilers choose a slower one.
  using Longs [[gnu::vector_size(sizeof(Vec))]] = std::uint64_t;
  const auto product = [](Longs a, std::uint32_t b) {
    return std::bit_cast<Longs>(_mm512_mul_epu32(std::bit_cast<__m512i>(a), _mm512_set1_epi64(b)));
  };
  const auto store_longs = [](std::uint32_t* to, Longs longs) { std::memcpy(to, &longs, sizeof(longs)); };
  Longs x[2][4];
  for (int part = 0; part < 2; ++part) {
    x[part][0] = Longs{0, 1, 2, 3, 4, 5, 6, 7} + (group + 8U * static_cast<unsigned>(part));
    x[part][1] = x[part][0] >> 32U;
    x[part][2] = Longs{} + c2;
    x[part][3] = Longs{} + c3;
  }
  for (int round = 0; round < 10; ++round) {
    for (auto& [x0, x1, x2, x3] : x) {
      const Longs p0 = product(x0, 0xD2511F53U);
      const Longs p1 = product(x2, 0xCD9E8D57U);
      x0 = (p1 >> 32U) ^ x1 ^ key.k0;
      x2 = (p0 >> 32U) ^ x3 ^ key.k1;
      x1 = p1;
      x3 = p0;
    }
    key.k0 += 0x9E3779B9U;
    key.k1 += 0xBB67AE85U;
  }
  for (const auto& [x0, x1, x2, x3] : x) {
    const Longs low = (x0 & 0xffffffffU) | (x1 << 32U);
    const Longs high = (x2 & 0xffffffffU) | (x3 << 32U);
    store_longs(words, __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11));
    store_longs(words + width, __builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15));
    words += 2 * width;
  }
}
#else
KOKKOS_FORCEINLINE_FUNCTION void random_words(PhiloxKey key, std::uint64_t group, std::uint32_t c2,
                                              std::uint32_t c3, std::uint32_t* words) {
  std::uint32_t drawn[4][width];
  for (int l = 0; l < width; ++l) {
    const std::uint64_t counter = group + static_cast<std::uint64_t>(l);
    const PhiloxBlock block =
        philox(key, static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32U), c2, c3);
    for (int j = 0; j < 4; ++j) drawn[j][l] = block.x[j];
  }
  for (int l = 0; l < width; ++l) {
    for (int j = 0; j < 4; ++j) words[4 * l + j] = drawn[j][l];
  }
}
#endif

}  // namespace mylos::compute_kokkos
