// SPDX-License-Identifier: BSD-3-Clause
// Tokenizers: text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mylos {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Plain text; special tokens are never made from it.
  virtual std::vector<std::uint16_t> encode(std::string_view text) const = 0;
  /// Throws ExitCode::bad_data for an id outside the vocabulary.
  virtual std::string decode(std::span<const std::uint16_t> tokens) const = 0;
  virtual std::int64_t vocab_size() const = 0;
  /// The id of <|endoftext|>, which separates documents.
  virtual std::uint16_t end_of_text() const = 0;
};

/// A token a byte, and <|endoftext|> = 256.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<std::uint16_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::uint16_t> tokens) const override;
  std::int64_t vocab_size() const override { return 257; }
  std::uint16_t end_of_text() const override { return 256; }
};

/// A kind of tokenizer.
struct TokenizerDescriptor {
  std::string_view name;  ///< in a deck and on the command line
  std::unique_ptr<Tokenizer> (*make)();
};

/// Every kind of tokenizer; the first is the default of `mylos tokenize`.
std::span<const TokenizerDescriptor> tokenizers();

/// Their names, with `separator` between them.
std::string tokenizer_names(std::string_view separator);

/// The tokenizer called `name`; throws ExitCode::usage if there is none of that name.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name);

}  // namespace mylos
