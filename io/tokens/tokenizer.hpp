// SPDX-License-Identifier: BSD-3-Clause
// Tokenizers: text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokens/sidecar.hpp"

namespace mylos {

/// Encodes text, for one thread at a time.
class Encoder {
 public:
  virtual ~Encoder() = default;
  /// Appends the tokens of plain text, at most one per byte, and never special tokens.
  virtual void append(std::string_view text, std::vector<std::uint16_t>& tokens) = 0;
};

/// May be used by several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// An encoder that uses this tokenizer, which must outlive it.
  virtual std::unique_ptr<Encoder> encoder() const = 0;
  std::vector<std::uint16_t> encode(std::string_view text) const;
  /// The bytes of the tokens, concatenated; the inverse of encoding, for any bytes. Throws ExitCode::bad_data
  /// for an id outside the vocabulary.
  std::string decode(std::span<const std::uint16_t> tokens) const;
  std::int64_t vocab_size() const { return end_of_text() + std::int64_t{1}; }
  /// The largest id: that of <|endoftext|>, which separates documents.
  virtual std::uint16_t end_of_text() const = 0;
  virtual TokenizerIdentity identity() const = 0;
  /// Finds where to cut a longer text that begins with `text`, such that encoding the two parts separately
  /// gives the tokens of the whole. Returns such a place in `text`, not always the last, in bytes, or 0 if
  /// there is none yet. `text` itself must start at a cut.
  virtual std::size_t last_cut(std::string_view text) const = 0;

 private:
  /// The bytes of a token below `end_of_text`.
  virtual std::string bytes_of(std::uint16_t token) const = 0;
};

/// A kind of tokenizer.
struct TokenizerDescriptor {
  std::string_view name;  ///< in a deck and, followed by =FILE if `has_ranks`, on the command line
  std::int64_t vocab_size;
  bool has_ranks;  ///< whether it reads ranks from a file
};

/// Every kind of tokenizer; the first is the default of `mylos tokenize`.
inline constexpr TokenizerDescriptor tokenizers[] = {
    {.name = "bytes", .vocab_size = 257, .has_ranks = false},
    {.name = "gpt2", .vocab_size = 50257, .has_ranks = true}};

/// Their names, with `separator` between them.
std::string tokenizer_names(std::string_view separator);

/// The kind called `name`. Throws ExitCode::usage if there is no such kind.
const TokenizerDescriptor& tokenizer_kind(std::string_view name);

/// The tokenizer that `choice` names: "bytes", or "gpt2=" and a path for BpeRanks::read. Throws
/// ExitCode::usage if `choice` names no tokenizer, ExitCode::bad_data if the file does not hold GPT-2's
/// ranks.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view choice);

}  // namespace mylos
