// SPDX-License-Identifier: BSD-3-Clause
// Ranks: the tokens of a byte-pair vocabulary in the order in which they merge, and the files that hold them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/bpe_merges.hpp"

namespace mylos {

class BpeRanks {
 public:
  /// Tokens and <|endoftext|> have 16 bits.
  static constexpr std::size_t most_tokens = 65535;

  /// The ranks that `path` names: a folder with `vocab.json` and `merges.txt`, `vocab.json` beside
  /// `merges.txt`, or a file of tiktoken's, a line `base64(bytes) rank` per token. Throws ExitCode::bad_data
  /// naming file and line if they are not the 256 bytes and tokens of which each is the merge of two before
  /// it, or if the two files do not say the same; ExitCode::io if they cannot be read.
  static BpeRanks read(const std::filesystem::path& path);

  /// As `read`, of text; errors name `name`.
  static BpeRanks parse_tiktoken(const std::string& text, const std::string& name);
  static BpeRanks parse_merges(const std::string& vocab_text, const std::string& vocab_name,
                               const std::string& merges_text, const std::string& merges_name);

  /// The bytes of each token; its index is its rank and id.
  const std::vector<std::string>& tokens() const { return tokens_; }
  const BpeMerges& merges() const { return merges_; }
  /// As a file of tiktoken's, ascending.
  std::string text() const;
  /// XXH3-128 of `text`, 32 hexadecimal digits: the same for whichever files the ranks came from.
  std::string digest() const;

 private:
  /// `place` gives file and line of a rank, for errors; `left_sizes`, unless empty, the bytes of the first of
  /// the two that merge into each token behind the single bytes.
  template <class Place>
  BpeRanks(std::vector<std::string> tokens, const Place& place, std::span<const std::size_t> left_sizes);
  /// Throws if a vocab.json does not say the same.
  void check_vocab(const std::string& text, const std::string& name) const;

  std::vector<std::string> tokens_;
  BpeMerges merges_;
};

}  // namespace mylos
