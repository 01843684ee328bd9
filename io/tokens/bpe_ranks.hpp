// SPDX-License-Identifier: BSD-3-Clause
// BpeRanks: the tokens of a byte-pair vocabulary in the order of their merges, and the files that hold them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/tokens/bpe_merges.hpp"

namespace mylos {

class BpeRanks {
 public:
  /// The ids of the tokens and <|endoftext|> have 16 bits.
  static constexpr std::size_t most_tokens = 65535;

  /// The ranks that `path` names: a folder with `vocab.json` and `merges.txt`, a .json file with the
  /// vocabulary next to `merges.txt`, or a tiktoken file with one line `base64(bytes) rank` per token. The
  /// ranks must be those of the 256 single bytes, followed by tokens that each merge two tokens of lower
  /// rank, and the vocabulary must agree with merges.txt. Otherwise throws ExitCode::bad_data naming the file
  /// and, if there is one, the line or key. Throws ExitCode::io if a file cannot be read.
  static BpeRanks read(const std::filesystem::path& path);

  /// Like `read`, from text; errors give the names.
  static BpeRanks parse_tiktoken(const std::string& text, const std::string& name);
  static BpeRanks parse_merges(const std::string& vocab_text, const std::string& vocab_name,
                               const std::string& merges_text, const std::string& merges_name);

  /// The bytes of each token; its index is its rank and id.
  const std::vector<std::string>& tokens() const { return tokens_; }
  const BpeMerges& merges() const { return merges_; }
  /// The ranks as a tiktoken file, ascending.
  std::string text() const;
  /// XXH3-128 of `text`, 32 hexadecimal digits: independent of the kind of file that the ranks came from.
  std::string digest() const;

 private:
  /// `place` gives the file and, if known, the line of a rank, for errors. `left_sizes`, unless empty, has
  /// one entry for each token after the single bytes: the size in bytes of the left of the two tokens that
  /// merge into it.
  template <class Place>
  BpeRanks(std::vector<std::string> tokens, const Place& place, std::span<const std::size_t> left_sizes);
  /// Throws if `text`, a vocab.json called `name`, disagrees with the ranks.
  void check_vocab(const std::string& text, const std::string& name) const;

  std::vector<std::string> tokens_;
  BpeMerges merges_;
};

}  // namespace mylos
