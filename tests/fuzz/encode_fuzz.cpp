// SPDX-License-Identifier: BSD-3-Clause
// The tokens of any bytes decode to the same bytes, and are the same if the bytes are encoded in the parts
// that `last_cut` allows.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/tokens/bpe_tokenizer.hpp"

namespace {

using namespace mylos;

/// Ranks with merges of letters, spaces and parts of characters.
BpeRanks some_ranks() {
  const std::string base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (unsigned byte = 0; byte < 256; ++byte)
    text += std::string{base64[byte >> 2U], base64[(byte & 3U) << 4U]} + "== " + std::to_string(byte) + "\n";
  // "aa", "th", "the", " the", "  ", "aaaa", a lead byte and its first continuation, 's
  const char* const merged[] = {"YWE=", "dGg=", "dGhl", "IHRoZQ==", "ICA=", "YWFhYQ==", "47g=", "J3M="};
  unsigned rank = 256;
  for (const char* token : merged) text += std::string(token) + " " + std::to_string(rank++) + "\n";
  return BpeRanks::parse_tiktoken(text, "ranks");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const BpeTokenizer tokenizer(some_ranks());
  static const auto encoder = tokenizer.encoder();
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<std::uint16_t> tokens;
  encoder->append(text, tokens);
  if (tokenizer.decode(tokens) != text) std::abort();
  std::vector<std::uint16_t> in_parts;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t known = (rest.size() + 1) / 2;
    const std::size_t cut = tokenizer.last_cut(rest.substr(0, known));
    const std::size_t part = cut == 0 ? rest.size() : cut;
    encoder->append(rest.substr(0, part), in_parts);
    rest.remove_prefix(part);
  }
  if (in_parts != tokens) std::abort();
  return 0;
}
