// SPDX-License-Identifier: BSD-3-Clause
// Stochastic rounding: rounds to the neighbour below or above at random, so that the expected result is the
// number itself.
#pragma once

#include <bit>
#include <cstdint>

#include "core/base/dtype.hpp"
#include "core/base/global_index.hpp"
#include "core/base/rng.hpp"

namespace mylos {

/// Returns `value` rounded to T. Rounds away from zero if `chance` / 2^16 is less than the distance to the
/// neighbour towards zero, in units of the distance between the neighbours. `chance` is uniformly
/// distributed. Values that T represents do not change. Up to T's largest finite number, the expectation
/// is `value`, or within 2^-40 of it for fp16 magnitudes below 2^-17. Magnitudes above T's largest finite
/// number are rounded to nearest, so that `chance` does not decide whether they become infinite. Branch-free,
/// so that compilers vectorise it.
template <class T>
T round_stochastically(float value, std::uint16_t chance);

template <>
MYLOS_HOST_DEVICE inline bf16 round_stochastically<bf16>(float value, std::uint16_t chance) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = u & 0x7fffffffU;
  const std::uint32_t addend = magnitude > 0x7f7f0000U ? 0x8000U : 0xffffU - chance;
  const std::uint32_t rounded = magnitude > 0x7f800000U ? u | 0x00400000U : u + addend;
  bf16 result;
  result.bits = static_cast<std::uint16_t>(rounded >> 16U);
  return result;
}

template <>
MYLOS_HOST_DEVICE inline fp16 round_stochastically<fp16>(float value, std::uint16_t chance) {
  const auto mask_of = [](bool condition) { return 0U - static_cast<std::uint32_t>(condition); };
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = u & 0x7fffffffU;
  const std::uint32_t addend = magnitude > 0x477fe000U ? 0x8000U : 0xffffU - chance;
  const std::uint32_t normal = (magnitude - 0x38000000U + (addend >> 3U)) >> 13U;
  const std::uint32_t is_subnormal = mask_of(magnitude < 0x38800000U);
  // The magnitude in units of 2^-40, which is 2^-16 of a subnormal's last place.
  const float small = std::bit_cast<float>(magnitude & is_subnormal) * 0x1p40F;
  const std::uint32_t subnormal =
      (static_cast<std::uint32_t>(static_cast<std::int32_t>(small)) + addend) >> 16U;
  const std::uint32_t quiet_nan = 0x7e00U | ((magnitude >> 13U) & 0x03ffU);
  const std::uint32_t is_finite = mask_of(magnitude < 0x47800000U);
  const std::uint32_t is_nan = mask_of(magnitude > 0x7f800000U);
  const std::uint32_t half = (subnormal & is_subnormal) | (normal & is_finite & ~is_subnormal) |
                             (0x7c00U & ~is_finite) | (quiet_nan & is_nan);
  fp16 result;
  result.bits = static_cast<std::uint16_t>(half | ((u >> 16U) & 0x8000U));
  return result;
}

/// The source of the `chance` of each element of a parameter. Element i takes half-word (e mod 8) of the
/// Philox block of counter (e / 8 in two words, 0, step). e = index(i) is the element's index in the whole
/// parameter, which is the same in every layout.
struct StochasticRounding {
  PhiloxKey key;
  GlobalIndex index;
};

/// The number of elements that share a counter.
inline constexpr int chances_of_counter = 8;

/// Returns the words that hold the chances of elements 8 * group .. 8 * group + 7, the low half of each word
/// first.
MYLOS_HOST_DEVICE inline PhiloxBlock rounding_words(PhiloxKey key, std::int64_t step, std::uint64_t group) {
  return philox(key, static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32U), 0,
                static_cast<std::uint32_t>(step));
}

/// Returns the chance of element 8 * group + i.
MYLOS_HOST_DEVICE inline std::uint16_t chance_of(const PhiloxBlock& words, int i) {
  return static_cast<std::uint16_t>(words.x[i / 2] >> (i % 2 * 16));
}

}  // namespace mylos
