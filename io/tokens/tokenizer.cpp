// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/tokenizer.hpp"

#include <ranges>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "io/tokens/bpe_tokenizer.hpp"

namespace mylos {

std::vector<std::uint16_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::uint16_t> tokens;
  encoder()->append(text, tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const std::uint16_t> tokens) const {
  std::string text;
  for (const std::uint16_t token : tokens) {
    if (token > end_of_text())
      fail(ExitCode::bad_data, "token {} is outside the tokenizer's vocabulary of {}", token, vocab_size());
    text += token == end_of_text() ? "<|endoftext|>" : bytes_of(token);
  }
  return text;
}

namespace {

class ByteEncoder final : public Encoder {
 public:
  void append(std::string_view text, std::vector<std::uint16_t>& tokens) override {
    tokens.reserve(tokens.size() + text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  }
};

/// One token per byte, and <|endoftext|> = 256.
class ByteTokenizer final : public Tokenizer {
 public:
  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<ByteEncoder>(); }

  std::uint16_t end_of_text() const override { return 256; }
  TokenizerIdentity identity() const override { return {.name = "bytes", .ranks = ""}; }
  /// The tokens are the same for any cut, but characters stay whole.
  std::size_t last_cut(std::string_view text) const override {
    std::size_t lead = text.size();
    while (lead > 0 && text.size() - lead < 3) {
      const auto byte = static_cast<unsigned char>(text[--lead]);
      if ((byte & 0xc0U) == 0x80U) continue;
      const std::size_t bytes = byte < 0xc0U ? 1 : byte < 0xe0U ? 2 : byte < 0xf0U ? 3 : 4;
      return bytes > text.size() - lead ? lead : text.size();
    }
    return text.size();
  }

 private:
  std::string bytes_of(std::uint16_t token) const override { return {static_cast<char>(token)}; }
};

}  // namespace

std::string tokenizer_names(std::string_view separator) {
  return join(tokenizers | std::views::transform(&TokenizerDescriptor::name), separator);
}

const TokenizerDescriptor& tokenizer_kind(std::string_view name) {
  for (const TokenizerDescriptor& tokenizer : tokenizers) {
    if (tokenizer.name == name) return tokenizer;
  }
  fail(ExitCode::usage, "no tokenizer is called \"{}\"; the tokenizers are {}", name, tokenizer_names(", "));
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view choice) {
  const std::size_t equals = choice.find('=');
  const std::string_view file = equals == std::string_view::npos ? "" : choice.substr(equals + 1);
  const TokenizerDescriptor& kind = tokenizer_kind(choice.substr(0, equals));
  if (!kind.has_ranks && equals != std::string_view::npos)
    fail(ExitCode::usage, "the tokenizer {} takes no file", kind.name);
  if (kind.has_ranks && file.empty())
    fail(ExitCode::usage, "the tokenizer {0} needs its ranks: {0}=FILE", kind.name);
  if (kind.has_ranks) return std::make_unique<BpeTokenizer>(read_gpt2_ranks(file));
  return std::make_unique<ByteTokenizer>();
}

}  // namespace mylos
