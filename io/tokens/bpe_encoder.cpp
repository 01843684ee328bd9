// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/bpe_encoder.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "io/tokens/pretokenizer.hpp"

namespace mylos {

namespace {

// Together 768 KiB: most of a second-level cache of 1 MiB.
constexpr std::size_t short_entries = std::size_t{1} << 14U;
constexpr std::size_t long_entries = std::size_t{1} << 12U;

template <std::size_t Words>
std::uint64_t mixed(const std::array<std::uint64_t, Words>& words) {
  std::uint64_t hash = 0;
  for (const std::uint64_t word : words) hash = (std::rotl(hash, 29) ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 32U;
}

}  // namespace

BpeEncoder::BpeEncoder(const BpeMerges& merges, std::mutex& long_pieces)
    : merges_(merges),
      long_pieces_(long_pieces),
      short_entries_(short_entries),
      long_entries_(long_entries) {}

/// `readable` bytes can be read from the start of `piece`: its own bytes and those after it.
template <class E>
std::uint16_t* BpeEncoder::cached_tokens(std::vector<E>& entries, std::string_view piece,
                                         std::size_t readable, std::uint16_t* tokens) {
  constexpr std::size_t bytes = sizeof(E::piece);
  decltype(E::piece) words{};
  if (readable >= bytes) {
    std::memcpy(words.data(), piece.data(), bytes);
    for (std::size_t w = 0; w < words.size(); ++w) {
      const auto kept =
          std::clamp<std::ptrdiff_t>(std::ssize(piece) - static_cast<std::ptrdiff_t>(8 * w), 0, 8);
      words[w] &= kept == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << static_cast<unsigned>(8 * kept)) - 1;
    }
  } else {
    std::memcpy(words.data(), piece.data(), piece.size());
  }
  E& entry = entries[(mixed(words) >> 20U) & (entries.size() - 1)];
  if (entry.piece != words || entry.bytes != piece.size()) {
    std::uint16_t* const end = merges_.merge(piece, tokens);
    const auto count = static_cast<std::size_t>(end - tokens);
    if (count <= entry.tokens.size()) {
      entry.piece = words;
      entry.bytes = static_cast<std::uint8_t>(piece.size());
      entry.count = static_cast<std::uint8_t>(count);
      std::copy(tokens, end, entry.tokens.begin());
    }
    return end;
  }
  // A copy of fixed size is faster than one of `count` tokens.
  std::memcpy(tokens, entry.tokens.data(), sizeof(entry.tokens));
  return tokens + entry.count;
}

void BpeEncoder::append(std::string_view text, std::vector<std::uint16_t>& tokens) {
  constexpr std::size_t much = 65536;
  // `cached_tokens` may overwrite up to this many tokens past the end of its output.
  constexpr std::size_t spare_tokens = 16;
  const std::size_t before = tokens.size();
  tokens.resize(before + text.size() + spare_tokens);
  std::uint16_t* end = tokens.data() + before;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, first_piece(text));
    if (piece.size() <= sizeof(ShortEntry::piece)) {
      end = cached_tokens(short_entries_, piece, text.size(), end);
    } else if (piece.size() <= sizeof(LongEntry::piece)) {
      end = cached_tokens(long_entries_, piece, text.size(), end);
    } else if (piece.size() <= much) {
      end = merges_.merge(piece, end);
    } else {
      const std::lock_guard lock(long_pieces_);
      end = merges_.merge(piece, end);
    }
    text.remove_prefix(piece.size());
  }
  tokens.resize(static_cast<std::size_t>(end - tokens.data()));
}

}  // namespace mylos
