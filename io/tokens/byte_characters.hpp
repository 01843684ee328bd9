// SPDX-License-Identifier: BSD-3-Clause
// The characters that stand for bytes in GPT-2's vocab.json and merges.txt.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "io/utf8.hpp"

namespace mylos {

/// Bytes that are printable in Latin-1, except spaces, stand for themselves; the others, in order, are
/// U+0100, U+0101 ... (Radford et al., "Language models are unsupervised multitask learners", 2019, code).
inline constexpr std::array<char32_t, 256> characters_of_bytes = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < characters.size(); ++byte) {
    const bool shows = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[byte] = shows ? byte : next++;
  }
  return characters;
}();

/// The bytes in the order of their characters, which is that of GPT-2's ids: printable bytes first.
inline constexpr std::array<unsigned char, 256> bytes_by_character = [] {
  std::array<unsigned char, 256> bytes{};
  std::size_t id = 0;
  for (const bool shows : {true, false}) {
    for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
      if ((characters_of_bytes[byte] < 0x100) == shows) bytes[id++] = static_cast<unsigned char>(byte);
    }
  }
  return bytes;
}();

/// The characters, in UTF-8, that stand for `bytes`.
inline std::string characters_of(std::string_view bytes) {
  std::string characters;
  for (const char byte : bytes)
    characters += encode_utf8(characters_of_bytes[static_cast<unsigned char>(byte)]);
  return characters;
}

}  // namespace mylos
