// SPDX-License-Identifier: BSD-3-Clause
// UTF-8: a character from its bytes, and the reverse.
#pragma once

#include <cstdint>
#include <string>

namespace mylos {

/// The character at the beginning of some bytes.
struct Utf8Char {
  std::uint32_t point = 0;
  std::uint32_t bytes = 0;  ///< 0 if they are malformed (Unicode, table 3-7)
};

/// The character that begins at `at`, which is before `end`.
inline Utf8Char decode_utf8(const char* at, const char* end) {
  const auto byte = [&](int i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(at[i])); };
  const auto continues = [&](int i) { return (byte(i) & 0xc0U) == 0x80U; };
  const std::uint32_t lead = byte(0);
  const auto rest = end - at;
  if (lead < 0x80U) return {lead, 1};
  if (lead < 0xe0U) {
    if (lead < 0xc2U || rest < 2 || !continues(1)) return {};
    return {(lead & 0x1fU) << 6U | (byte(1) & 0x3fU), 2};
  }
  if (lead < 0xf0U) {
    if (rest < 3 || !continues(1) || !continues(2)) return {};
    const std::uint32_t point = (lead & 0xfU) << 12U | (byte(1) & 0x3fU) << 6U | (byte(2) & 0x3fU);
    if (point < 0x800U || (point >= 0xd800U && point < 0xe000U)) return {};
    return {point, 3};
  }
  if (lead > 0xf4U || rest < 4 || !continues(1) || !continues(2) || !continues(3)) return {};
  const std::uint32_t point =
      (lead & 7U) << 18U | (byte(1) & 0x3fU) << 12U | (byte(2) & 0x3fU) << 6U | (byte(3) & 0x3fU);
  if (point < 0x10000U || point > 0x10ffffU) return {};
  return {point, 4};
}

inline std::string encode_utf8(std::uint32_t point) {
  const auto first = [&](unsigned mark, unsigned shift) { return static_cast<char>(mark | point >> shift); };
  const auto next = [&](unsigned shift) { return static_cast<char>(0x80U | (point >> shift & 0x3fU)); };
  if (point < 0x80U) return {first(0, 0)};
  if (point < 0x800U) return {first(0xc0, 6), next(0)};
  if (point < 0x10000U) return {first(0xe0, 12), next(6), next(0)};
  return {first(0xf0, 18), next(12), next(6), next(0)};
}

}  // namespace mylos
