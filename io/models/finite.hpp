// SPDX-License-Identifier: BSD-3-Clause
// Whether values are finite.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/base/dtype.hpp"

namespace mylos {

template <class T>
bool is_finite(T value) {
  return std::isfinite(static_cast<float>(value));
}

/// Whether all values, fp32, bf16 or fp16, are finite. Written such that compilers vectorise it.
template <class T>
bool are_finite(std::span<const T> values) {
  using Bits = std::conditional_t<sizeof(T) == sizeof(float), std::uint32_t, std::uint16_t>;
  constexpr auto exponent = static_cast<Bits>(std::is_same_v<T, float>  ? 0x7f80'0000U
                                              : std::is_same_v<T, bf16> ? 0x7f80U
                                                                        : 0x7c00U);
  Bits largest = 0;
  for (const T value : values)
    largest = std::max(largest, static_cast<Bits>(std::bit_cast<Bits>(value) & exponent));
  return largest < exponent;
}

/// The first value that is not finite, or the number of values.
template <class T>
std::int64_t find_not_finite(std::span<const T> values) {
  return std::ranges::find_if_not(values, [](T value) { return is_finite(value); }) - values.begin();
}

}  // namespace mylos
