// SPDX-License-Identifier: BSD-3-Clause
// BpeEncoder: text to tokens, by GPT-2's pre-tokenizer and any merges.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "io/tokens/bpe_merges.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

/// For one thread at a time: it caches the tokens of pieces.
class BpeEncoder final : public Encoder {
 public:
  /// `merges` and `long_pieces` must outlive this. `long_pieces` is locked while a piece of more than 64 KiB
  /// is merged, because this takes much memory.
  BpeEncoder(const BpeMerges& merges, std::mutex& long_pieces);

  void append(std::string_view text, std::vector<std::uint16_t>& tokens) override;

 private:
  /// A piece of at most `Bytes` bytes, zero-padded, and its at most `Tokens` tokens.
  template <std::size_t Bytes, std::size_t Tokens>
  struct alignas(Bytes * 2) Entry {
    std::array<std::uint64_t, Bytes / sizeof(std::uint64_t)> piece;
    std::array<std::uint16_t, Tokens> tokens;
    std::uint8_t bytes;
    std::uint8_t count;
  };
  using ShortEntry = Entry<16, 7>;
  using LongEntry = Entry<32, 15>;

  template <class E>
  std::uint16_t* cached_tokens(std::vector<E>& entries, std::string_view piece, std::size_t readable,
                               std::uint16_t* tokens);

  const BpeMerges& merges_;
  std::mutex& long_pieces_;
  std::vector<ShortEntry> short_entries_;
  std::vector<LongEntry> long_entries_;
};

}  // namespace mylos
