// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/bpe_merges.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

namespace mylos {

namespace {

/// Pieces of at most this many bytes are merged by scanning all neighbours: faster than a heap for few bytes.
constexpr std::size_t most_short_bytes = 128;

}  // namespace

BpeMerges::BpeMerges(const std::array<std::uint16_t, 256>& byte_tokens)
    : byte_tokens_(byte_tokens), merged_bytes_(std::size_t{256} * 256, std::uint16_t{none}) {
  grow();
}

void BpeMerges::grow() {
  constexpr std::size_t first_size = 1024;
  const auto keys =
      std::exchange(keys_, std::vector<std::uint32_t>(std::max(first_size, 2 * keys_.size()), empty));
  const auto values = std::exchange(merged_, std::vector<std::uint16_t>(keys_.size()));
  mask_ = static_cast<std::uint32_t>(keys_.size() - 1);
  shift_ = 32U - static_cast<std::uint32_t>(std::popcount(mask_));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] != empty) insert(keys[i], values[i]);
  }
}

void BpeMerges::insert(std::uint32_t key, std::uint16_t merged) {
  std::uint32_t slot = slot_of(key);
  while (keys_[slot] != empty) slot = (slot + 1) & mask_;
  keys_[slot] = key;
  merged_[slot] = merged;
}

void BpeMerges::add(std::uint16_t left, std::uint16_t right, std::uint16_t merged) {
  if (2 * ++count_ > keys_.size()) grow();
  insert(std::uint32_t{left} << 16U | right, merged);
  const auto byte_of = [&](std::uint16_t token) {
    return std::ranges::find(byte_tokens_, token) - byte_tokens_.begin();
  };
  const auto a = byte_of(left);
  const auto b = byte_of(right);
  if (a < 256 && b < 256) merged_bytes_[static_cast<std::size_t>(a << 8 | b)] = merged;
}

std::uint16_t* BpeMerges::merge(std::string_view piece, std::uint16_t* tokens) const {
  return piece.size() <= most_short_bytes ? merge_short(piece, tokens) : merge_long(piece, tokens);
}

std::uint16_t* BpeMerges::merge_short(std::string_view piece, std::uint16_t* tokens) const {
  constexpr std::uint32_t lanes = 16;
  constexpr std::uint32_t never = 0xffffffff;
  // For each byte, the merge of the symbol that begins at that byte and the next symbol: merged token << 16 |
  // the byte's index.
  alignas(64) std::array<std::uint32_t, most_short_bytes + lanes> merges;
  std::array<std::uint16_t, most_short_bytes + 1> symbols;
  std::array<std::uint8_t, most_short_bytes + 1> next;
  std::array<std::uint8_t, most_short_bytes + 1> previous;
  const auto size = static_cast<std::uint32_t>(piece.size());
  const auto candidate = [](std::uint32_t merged, std::uint32_t at) {
    return merged == none ? never : merged << 16U | at;
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    symbols[i] = byte_token(piece[i]);
    next[i] = static_cast<std::uint8_t>(i + 1);
    previous[i] = static_cast<std::uint8_t>(i - 1);
    merges[i] = i + 1 < size ? candidate(merged_bytes(piece[i], piece[i + 1]), i) : never;
  }
  const std::uint32_t padded = (size + lanes - 1) / lanes * lanes;
  std::fill(merges.begin() + size, merges.begin() + padded, never);
  for (;;) {
    std::uint32_t least = never;
    for (std::uint32_t i = 0; i < padded; ++i) least = std::min(least, merges[i]);
    if (least == never) break;
    const std::uint32_t at = least & 0xffffU;
    const std::uint32_t gone = next[at];
    const std::uint32_t after = next[gone];
    symbols[at] = static_cast<std::uint16_t>(least >> 16U);
    merges[gone] = never;
    next[at] = static_cast<std::uint8_t>(after);
    merges[at] = never;
    if (after < size) {
      previous[after] = static_cast<std::uint8_t>(at);
      merges[at] = candidate(merged(symbols[at], symbols[after]), at);
    }
    if (at > 0) {
      const std::uint32_t before = previous[at];
      merges[before] = candidate(merged(symbols[before], symbols[at]), before);
    }
  }
  for (std::uint32_t i = 0; i < size; i = next[i]) *tokens++ = symbols[i];
  return tokens;
}

std::uint16_t* BpeMerges::merge_long(std::string_view piece, std::uint16_t* tokens) const {
  const auto size = static_cast<std::uint32_t>(piece.size());
  constexpr std::uint32_t gone = 0xffffffff;
  std::vector<std::uint16_t> symbols(size);
  std::vector<std::uint32_t> next(size);  // `gone` after the symbol was merged into the previous one
  std::vector<std::uint32_t> previous(size);
  // Candidates: merged token << 32 | index of the byte at which the left token begins. Outdated candidates
  // stay and are skipped when they are popped.
  std::vector<std::uint64_t> heap;
  const auto candidate = [](std::uint32_t merged, std::uint32_t at) {
    return std::uint64_t{merged} << 32U | at;
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    symbols[i] = byte_token(piece[i]);
    next[i] = i + 1;
    previous[i] = i - 1;
    if (i + 1 == size) break;
    if (const std::uint32_t both = merged_bytes(piece[i], piece[i + 1]); both != none)
      heap.push_back(candidate(both, i));
  }
  std::ranges::make_heap(heap, std::greater{});
  const auto push = [&](std::uint32_t at, std::uint32_t after) {
    const std::uint32_t both = merged(symbols[at], symbols[after]);
    if (both == none) return;
    heap.push_back(candidate(both, at));
    std::ranges::push_heap(heap, std::greater{});
  };
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater{});
    const auto at = static_cast<std::uint32_t>(heap.back());
    const auto both = static_cast<std::uint32_t>(heap.back() >> 32U);
    heap.pop_back();
    const std::uint32_t second = next[at];
    if (second == gone || second == size || merged(symbols[at], symbols[second]) != both) continue;
    const std::uint32_t after = next[second];
    symbols[at] = static_cast<std::uint16_t>(both);
    next[at] = after;
    next[second] = gone;
    if (after < size) {
      previous[after] = at;
      push(at, after);
    }
    if (at > 0) push(previous[at], at);
  }
  for (std::uint32_t i = 0; i < size; i = next[i]) *tokens++ = symbols[i];
  return tokens;
}

}  // namespace mylos
