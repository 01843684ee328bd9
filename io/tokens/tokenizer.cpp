// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/tokenizer.hpp"

#include "core/base/error.hpp"

namespace mylos {

std::vector<std::uint16_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::uint16_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const std::uint16_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const std::uint16_t token : tokens) {
    if (token == end_of_text()) {
      text += "<|endoftext|>";
    } else if (token < end_of_text()) {
      text += static_cast<char>(token);
    } else {
      fail(ExitCode::bad_data, "token {} is outside the byte tokenizer's vocabulary of {}", token,
           vocab_size());
    }
  }
  return text;
}

namespace {

template <class T>
std::unique_ptr<Tokenizer> make() {
  return std::make_unique<T>();
}

constexpr TokenizerDescriptor all_tokenizers[] = {
    {"bytes", make<ByteTokenizer>},
};

}  // namespace

std::span<const TokenizerDescriptor> tokenizers() {
  return all_tokenizers;
}

std::string tokenizer_names(std::string_view separator) {
  std::string names;
  for (const TokenizerDescriptor& tokenizer : all_tokenizers) {
    if (!names.empty()) names += separator;
    names += tokenizer.name;
  }
  return names;
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name) {
  for (const TokenizerDescriptor& tokenizer : all_tokenizers) {
    if (tokenizer.name == name) return tokenizer.make();
  }
  fail(ExitCode::usage, "no tokenizer is called \"{}\"; there is: {}", name, tokenizer_names(", "));
}

}  // namespace mylos
