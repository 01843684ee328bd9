// SPDX-License-Identifier: BSD-3-Clause
// BpeTokenizer: GPT-2's tokenizer, for any ranks.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "io/tokens/bpe_ranks.hpp"
#include "io/tokens/pretokenizer.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

/// Byte-pair encoding of the pieces that first_piece() finds. The id of <|endoftext|> follows the ranks.
class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeRanks ranks);

  std::unique_ptr<Encoder> encoder() const override;
  std::uint16_t end_of_text() const override { return static_cast<std::uint16_t>(ranks_.tokens().size()); }
  TokenizerIdentity identity() const override { return {.name = "gpt2", .ranks = digest_}; }
  std::size_t last_cut(std::string_view text) const override { return mylos::last_cut(text); }
  const BpeRanks& ranks() const { return ranks_; }

 private:
  std::string bytes_of(std::uint16_t token) const override { return ranks_.tokens()[token]; }

  BpeRanks ranks_;
  std::string digest_;
  mutable std::mutex long_pieces_;
};

/// BpeRanks::digest of GPT-2's ranks.
inline constexpr std::string_view gpt2_digest = "aa5ef69a716d8a563cb2fbe95939bd2d";

/// The ranks that `path` holds (BpeRanks::read). Throws ExitCode::bad_data if they are not GPT-2's.
BpeRanks read_gpt2_ranks(const std::filesystem::path& path);

}  // namespace mylos
