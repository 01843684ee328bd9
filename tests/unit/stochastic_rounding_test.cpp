// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/stochastic_rounding.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace mylos {
namespace {

constexpr std::uint16_t chances[] = {0, 1, 0x7fff, 0x8000, 0xffff};
constexpr float infinity = std::numeric_limits<float>::infinity();

/// The largest finite number of T.
template <class T>
constexpr float largest() {
  return dtype_of<T>() == DType::bf16 ? 0x1.fep127F : 65504.0F;
}

template <class T>
T with_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

template <class T>
class StochasticRoundingOf : public testing::Test {};
using NarrowTypes = testing::Types<bf16, fp16>;
TYPED_TEST_SUITE(StochasticRoundingOf, NarrowTypes);

TYPED_TEST(StochasticRoundingOf, KeepsValuesThatTheTypeHolds) {
  for (std::uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const auto exact = static_cast<float>(with_bits<TypeParam>(bits));
    for (const std::uint16_t chance : chances) {
      const TypeParam rounded = round_stochastically<TypeParam>(exact, chance);
      if (std::isnan(exact)) {
        EXPECT_TRUE(std::isnan(static_cast<float>(rounded))) << bits;
      } else {
        EXPECT_EQ(rounded.bits, bits) << chance;
      }
    }
  }
}

TYPED_TEST(StochasticRoundingOf, KeepsTheExpectation) {
  constexpr std::uint32_t num_chances = 1U << 16U;
  for (std::uint32_t i = 0; i < 40; ++i) {
    const std::uint32_t highest = std::bit_cast<std::uint32_t>(largest<TypeParam>()) >> 16U;
    const auto lower_bits = static_cast<std::uint16_t>(mix64(i) % highest);
    const TypeParam low = with_bits<TypeParam>(lower_bits % TypeParam(largest<TypeParam>()).bits);
    const auto below = static_cast<float>(low);
    const auto above = static_cast<float>(with_bits<TypeParam>(low.bits + 1U));
    const float share = static_cast<float>(i) / 64.0F + 1.0F / 1024.0F;
    const float value = below + share * (above - below);
    for (const float sign : {1.0F, -1.0F}) {
      std::uint32_t ups = 0;
      for (std::uint32_t chance = 0; chance < num_chances; ++chance) {
        const auto rounded = static_cast<float>(
            round_stochastically<TypeParam>(sign * value, static_cast<std::uint16_t>(chance)));
        EXPECT_TRUE(rounded == sign * below || rounded == sign * above) << value << " -> " << rounded;
        ups += rounded == sign * above ? 1 : 0;
      }
      EXPECT_EQ(static_cast<float>(ups), share * static_cast<float>(num_chances)) << value;
    }
  }
}

TYPED_TEST(StochasticRoundingOf, RoundsToNearestBeyondTheLargestNumber) {
  const float beyond = std::nextafter(largest<TypeParam>(), infinity);
  for (const std::uint16_t chance : chances) {
    EXPECT_EQ(static_cast<float>(round_stochastically<TypeParam>(beyond, chance)), largest<TypeParam>());
    EXPECT_EQ(static_cast<float>(round_stochastically<TypeParam>(-beyond, chance)), -largest<TypeParam>());
    for (const float value : {std::numeric_limits<float>::max(), infinity}) {
      EXPECT_EQ(static_cast<float>(round_stochastically<TypeParam>(value, chance)), infinity);
      EXPECT_EQ(static_cast<float>(round_stochastically<TypeParam>(-value, chance)), -infinity);
    }
    const float nan = std::bit_cast<float>(0x7f800001U);
    EXPECT_TRUE(std::isnan(static_cast<float>(round_stochastically<TypeParam>(nan, chance))));
  }
}

}  // namespace
}  // namespace mylos
