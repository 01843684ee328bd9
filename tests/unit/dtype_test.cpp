// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/dtype.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace mylos {
namespace {

constexpr std::uint32_t num_halves = 1U << 16U;
constexpr std::uint16_t infinity = 0x7c00U;

/// The value of fp16 bits, from sign, exponent and mantissa.
double value_of(std::uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0U ? -1.0 : 1.0;
  const int exponent = (bits >> 10U) & 0x1f;
  const double mantissa = bits & 0x3ffU;
  if (exponent == 0x1f)
    return mantissa != 0.0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024.0 + mantissa, exponent - 25);
}

void expect_conversion(float value, std::uint16_t expected) {
  EXPECT_EQ(fp16(value).bits, expected) << value;
  EXPECT_EQ(fp16(-value).bits, expected | 0x8000U) << -value;
}

TEST(Fp16, EveryValueIsKept) {
  for (std::uint32_t i = 0; i < num_halves; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    fp16 half;
    half.bits = bits;
    const double value = value_of(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(half))) << i;
      EXPECT_TRUE(std::isnan(value_of(fp16(static_cast<float>(half)).bits))) << i;
      continue;
    }
    EXPECT_EQ(static_cast<float>(half), value) << i;
    EXPECT_EQ(fp16(static_cast<float>(value)).bits, bits) << i;
  }
}

TEST(Fp16, RoundsToNearestTiesToEven) {
  for (std::uint16_t low = 0; low < infinity; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    // The number after the largest would be 65536, for which fp16 has infinity.
    const double above = high == infinity ? 65536.0 : value_of(high);
    const auto middle = static_cast<float>(0.5 * (value_of(low) + above));
    expect_conversion(middle, (low & 1U) == 0U ? low : high);
    expect_conversion(std::nextafter(middle, 0.0F), low);
    expect_conversion(std::nextafter(middle, 1e6F), high);
  }
}

TEST(Fp16, ConvertsSmallAndLargeNumbers) {
  expect_conversion(0x1p-26F, 0);
  expect_conversion(std::numeric_limits<float>::denorm_min(), 0);
  expect_conversion(1e6F, infinity);
  expect_conversion(std::numeric_limits<float>::infinity(), infinity);
  EXPECT_TRUE(std::isnan(static_cast<float>(fp16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(value_of(fp16(std::bit_cast<float>(0x7f800001U)).bits)));
}

}  // namespace
}  // namespace mylos
