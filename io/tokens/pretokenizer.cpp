// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/pretokenizer.hpp"

namespace mylos {

namespace {

/// Whether a piece is only white space: a leading space may also belong to a word.
bool is_white(std::string_view piece) {
  const CharClasses& classes = CharClasses::table();
  const char* const end = piece.data() + piece.size();
  const ClassifiedChar first = classes.at(piece.data(), end);
  return first.kind == CharClass::space &&
         (first.bytes == piece.size() ||
          classes.at(piece.data() + first.bytes, end).kind == CharClass::space);
}

}  // namespace

std::size_t last_cut(std::string_view text) {
  const CharClasses& classes = CharClasses::table();
  // White space after any other character always begins a piece.
  for (std::size_t cut = text.size(); cut-- > 1;) {
    if (classes.ascii(text[cut]) != CharClass::space) continue;
    std::size_t before = cut - 1;  // where the character before `cut` begins
    while (before > 0 && cut - before < 4 && (static_cast<unsigned char>(text[before]) & 0xc0U) == 0x80U)
      --before;
    const ClassifiedChar ends = classes.at(text.data() + before, text.data() + cut);
    if (ends.kind != CharClass::space || ends.bytes != cut - before) return cut;
  }
  std::size_t cut = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = first_piece(text.substr(at));
    const std::string_view piece = text.substr(at, bytes);
    at += bytes;
    if (at + piece_lookahead > text.size()) break;
    // No cut after white space shorter than most_piece_bytes: at the end of a text it is one piece; before
    // another character it may be two.
    if (!is_white(piece) || bytes >= most_piece_bytes) cut = at;
  }
  return cut;
}

}  // namespace mylos
