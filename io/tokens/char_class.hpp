// SPDX-License-Identifier: BSD-3-Clause
// The kinds of characters that GPT-2's pre-tokenizer distinguishes, read from UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "io/utf8.hpp"

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
    if (kind != CharClass::malformed) return {kind, 1};
    const Utf8Char character = decode_utf8(at, end);
    if (character.bytes == 0) return {CharClass::malformed, 1};
    return {of(character.point), character.bytes};
  }

 private:
  static constexpr unsigned block_bits = 7;
  static constexpr std::size_t block_size = std::size_t{1} << block_bits;

  CharClasses();

  std::array<CharClass, 256> ascii_{};
  std::array<std::uint16_t, (0x110000U >> block_bits)> block_of_{};
  std::vector<CharClass> blocks_;  // the distinct blocks
};

}  // namespace mylos
