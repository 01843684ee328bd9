// SPDX-License-Identifier: BSD-3-Clause
// Byte-pair merges: which two tokens merge into one, and the merging of a piece of text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mylos {

/// The merges of a vocabulary in which a token's id is its rank. Of all neighbours that can merge, those that
/// merge into the token of lowest id merge first; ties go to the leftmost (Sennrich et al., "Neural machine
/// translation of rare words with subword units", 2016).
class BpeMerges {
 public:
  static constexpr std::uint32_t none = 0xffff;

  /// Without merges; `byte_tokens` are the ids of the single bytes.
  explicit BpeMerges(const std::array<std::uint16_t, 256>& byte_tokens);

  /// Adds the merge of `left` and `right` into `merged`, an id below `none`. Each pair is added at most once.
  void add(std::uint16_t left, std::uint16_t right, std::uint16_t merged);

  std::uint16_t byte_token(char byte) const { return byte_tokens_[static_cast<unsigned char>(byte)]; }

  /// Merges the n bytes of `piece` in O(n log n) time and O(n) memory, writes its tokens, at most one per
  /// byte, and returns their end.
  std::uint16_t* merge(std::string_view piece, std::uint16_t* tokens) const;

 private:
  /// The token that the two merge into, or `none`.
  std::uint32_t merged(std::uint32_t left, std::uint32_t right) const {
    const std::uint32_t key = left << 16U | right;
    for (std::uint32_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (keys_[slot] == key) return merged_[slot];
      if (keys_[slot] == empty) return none;
    }
  }
  std::uint32_t merged_bytes(char left, char right) const {
    return merged_bytes_[std::size_t{static_cast<unsigned char>(left)} << 8U |
                         static_cast<unsigned char>(right)];
  }
  std::uint32_t slot_of(std::uint32_t key) const { return (key * 0x9e3779b1U) >> shift_; }
  void insert(std::uint32_t key, std::uint16_t merged);
  void grow();
  std::uint16_t* merge_short(std::string_view piece, std::uint16_t* tokens) const;
  std::uint16_t* merge_long(std::string_view piece, std::uint16_t* tokens) const;

  static constexpr std::uint32_t empty = 0xffffffff;

  std::array<std::uint16_t, 256> byte_tokens_;
  std::vector<std::uint16_t> merged_bytes_;  // for two single bytes, the most frequent lookup
  // A hash table with open addressing, at most half full.
  std::vector<std::uint32_t> keys_;
  std::vector<std::uint16_t> merged_;
  std::uint32_t shift_ = 0, mask_ = 0, count_ = 0;
};

}  // namespace mylos
