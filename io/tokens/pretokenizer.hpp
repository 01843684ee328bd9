// SPDX-License-Identifier: BSD-3-Clause
// GPT-2's pre-tokenizer: where a text is cut before bytes are merged. No token crosses a cut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "io/tokens/char_class.hpp"

namespace mylos {

/// A piece has at most three bytes more than this: a longer run of one kind of character is cut, so that a
/// text of any size takes bounded memory.
inline constexpr std::size_t most_piece_bytes = std::size_t{2} << 20U;

/// The end of a piece depends on at most this many bytes of text after it.
inline constexpr std::size_t piece_lookahead = 8;

/// The number of bytes of the first piece of `text`, which is not empty, under
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` with Unicode 16. A byte that
/// does not begin well-formed UTF-8 (Unicode, table 3-7) is a piece by itself, and the piece before it ends
/// there.
inline std::size_t first_piece(std::string_view text);

/// A number of leading bytes of `text`, the beginning of a longer text, that can be encoded separately: a
/// piece ends there, whatever follows. `text` must begin at a cut. A cut before ASCII white space is
/// preferred to a later one. 0 if there is no cut yet; a text of a little more than 2 * most_piece_bytes
/// always has one.
std::size_t last_cut(std::string_view text);

namespace detail {

/// The end of the run of `kind` that continues at `at`.
inline const char* run_end(const CharClasses& classes, const char* at, const char* stop, const char* end,
                           CharClass kind) {
  while (at < stop) {
    const ClassifiedChar next = classes.at(at, end);
    if (next.kind != kind) break;
    at += next.bytes;
  }
  return at;
}

/// The number of bytes of `'s`, `'re` ... at an apostrophe, or 0.
inline std::size_t contraction(const char* at, const char* end) {
  if (end - at < 2) return 0;
  const char c = at[1];
  if (c == 's' || c == 't' || c == 'm' || c == 'd') return 2;
  if (end - at < 3) return 0;
  const char d = at[2];
  return ((c == 'r' || c == 'v') && d == 'e') || (c == 'l' && d == 'l') ? 3 : 0;
}

}  // namespace detail

inline std::size_t first_piece(std::string_view text) {
  const CharClasses& classes = CharClasses::table();
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const char* const stop = begin + std::min(text.size(), most_piece_bytes);
  const ClassifiedChar first = classes.at(begin, end);
  const auto run_after = [&](const char* at, ClassifiedChar run) {
    return static_cast<std::size_t>(detail::run_end(classes, at + run.bytes, stop, end, run.kind) - begin);
  };
  if (*begin == '\'') {
    if (const std::size_t bytes = detail::contraction(begin, end)) return bytes;
  }
  if (first.kind == CharClass::malformed) return 1;
  if (first.kind != CharClass::space) return run_after(begin, first);
  if (*begin == ' ' && begin + 1 < end) {
    const ClassifiedChar second = classes.at(begin + 1, end);
    if (second.kind < CharClass::space) return run_after(begin + 1, second);
  }
  // White space of several characters leaves its last one to the next piece if another character follows.
  const char* last = begin;
  const char* at = begin + first.bytes;
  while (at < stop) {
    const ClassifiedChar next = classes.at(at, end);
    if (next.kind == CharClass::malformed) break;
    if (next.kind != CharClass::space) return static_cast<std::size_t>((last > begin ? last : at) - begin);
    last = at;
    at += next.bytes;
  }
  return static_cast<std::size_t>(at - begin);
}

}  // namespace mylos
