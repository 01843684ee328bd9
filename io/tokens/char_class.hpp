// SPDX-License-Identifier: BSD-3-Clause
// The kinds of characters that GPT-2's pre-tokenizer distinguishes, read from UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace mylos {

enum class CharClass : std::uint8_t { other, letter, number, space, malformed };

/// The character at the beginning of some bytes.
struct ClassifiedChar {
  CharClass kind;
  std::uint32_t bytes;  ///< 1 if malformed
};

/// A two-stage table of all code points.
class CharClasses {
 public:
  static const CharClasses& table();

  /// `malformed` for bytes of 0x80 and above.
  CharClass ascii(char c) const { return ascii_[static_cast<unsigned char>(c)]; }
  CharClass of(char32_t point) const {
    return blocks_[std::size_t{block_of_[point >> block_bits]} * block_size + (point & (block_size - 1))];
  }

  /// The character that begins at `at`, which is before `end`.
  ClassifiedChar at(const char* at, const char* end) const {
    const auto kind = ascii(*at);
    return kind != CharClass::malformed ? ClassifiedChar{kind, 1} : beyond_ascii(at, end);
  }

 private:
  static constexpr unsigned block_bits = 7;
  static constexpr std::size_t block_size = std::size_t{1} << block_bits;

  CharClasses();
  ClassifiedChar beyond_ascii(const char* at, const char* end) const;

  std::array<CharClass, 256> ascii_{};
  std::array<std::uint16_t, (0x110000U >> block_bits)> block_of_{};
  std::vector<CharClass> blocks_;  // the distinct blocks
};

inline ClassifiedChar CharClasses::beyond_ascii(const char* at, const char* end) const {
  const auto byte = [&](int i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(at[i])); };
  const auto continues = [&](int i) { return (byte(i) & 0xc0U) == 0x80U; };
  constexpr ClassifiedChar malformed{CharClass::malformed, 1};
  const std::uint32_t lead = byte(0);
  const auto rest = end - at;
  if (lead < 0xe0U) {
    if (lead < 0xc2U || rest < 2 || !continues(1)) return malformed;
    return {of((lead & 0x1fU) << 6U | (byte(1) & 0x3fU)), 2};
  }
  if (lead < 0xf0U) {
    if (rest < 3 || !continues(1) || !continues(2)) return malformed;
    const std::uint32_t point = (lead & 0xfU) << 12U | (byte(1) & 0x3fU) << 6U | (byte(2) & 0x3fU);
    if (point < 0x800U || (point >= 0xd800U && point < 0xe000U)) return malformed;
    return {of(point), 3};
  }
  if (lead > 0xf4U || rest < 4 || !continues(1) || !continues(2) || !continues(3)) return malformed;
  const std::uint32_t point =
      (lead & 7U) << 18U | (byte(1) & 0x3fU) << 12U | (byte(2) & 0x3fU) << 6U | (byte(3) & 0x3fU);
  if (point < 0x10000U || point > 0x10ffffU) return malformed;
  return {of(point), 4};
}

}  // namespace mylos
