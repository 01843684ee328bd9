// SPDX-License-Identifier: BSD-3-Clause
// Counter-based random numbers: a draw depends only on its key and counter, not on the rank that draws or on
// the order of draws. Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/base/dtype.hpp"

namespace mylos {

struct PhiloxKey {
  std::uint32_t k0 = 0;
  std::uint32_t k1 = 0;
};

struct PhiloxBlock {
  std::uint32_t x[4];
};

/// Returns four random words for the 128-bit counter (c0, c1, c2, c3).
MYLOS_HOST_DEVICE inline PhiloxBlock philox(PhiloxKey key, std::uint32_t c0, std::uint32_t c1,
                                            std::uint32_t c2, std::uint32_t c3) {
  constexpr std::uint64_t m0 = 0xD2511F53U;
  constexpr std::uint64_t m1 = 0xCD9E8D57U;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = m0 * c0;
    const std::uint64_t p1 = m1 * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32U) ^ c1 ^ key.k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32U) ^ c3 ^ key.k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    key.k0 += 0x9E3779B9U;
    key.k1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

/// Returns a random word as a float in [0, 1), a multiple of 2^-24.
MYLOS_HOST_DEVICE inline float uniform01(std::uint32_t word) {
  return static_cast<float>(word >> 8U) * 0x1.0p-24F;
}

/// Returns two independent standard normals from two random words (Box and Muller, 1958).
inline std::array<float, 2> normal_pair(std::uint32_t a, std::uint32_t b) {
  const double u = (static_cast<double>(a) + 1.0) * 0x1.0p-32;
  const double angle = 2.0 * 3.14159265358979323846 * static_cast<double>(b) * 0x1.0p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

/// The finaliser of Vigna's splitmix64.c: a bijective mix of 64 bits.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x ^= x >> 30U;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27U;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

/// Returns the key of a stream of random numbers, from a seed and the purpose of the stream: a parameter's
/// name, "shuffle", "dropout.embedding" and so on.
constexpr PhiloxKey stream_key(std::uint64_t seed, std::string_view purpose) {
  std::uint64_t h = mix64(seed + 0x9e3779b97f4a7c15ULL);
  for (const char c : purpose) h = mix64(h ^ static_cast<unsigned char>(c));
  return {static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(h >> 32U)};
}

}  // namespace mylos
