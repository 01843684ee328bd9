// SPDX-License-Identifier: BSD-3-Clause
// Files of ranks: any text either gives ranks that reproduce each of their tokens, or is refused as bad data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "io/tokens/bpe_ranks.hpp"

namespace {

using mylos::BpeRanks;

/// The lines of the single bytes, used as a prefix: otherwise, few generated inputs would contain all of
/// them.
const std::string& byte_lines() {
  static const std::string lines = [] {
    const std::string base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (unsigned byte = 0; byte < 256; ++byte)
      text +=
          std::string{base64[byte >> 2U], base64[(byte & 3U) << 4U]} + "== " + std::to_string(byte) + "\n";
    return text;
  }();
  return lines;
}

void check(const BpeRanks& ranks) {
  if (BpeRanks::parse_tiktoken(ranks.text(), "again").digest() != ranks.digest()) std::abort();
  for (std::size_t id = 0; id < ranks.tokens().size(); ++id) {
    const std::string& token = ranks.tokens()[id];
    std::vector<std::uint16_t> tokens(token.size());
    if (ranks.merges().merge(token, tokens.data()) != tokens.data() + 1 || tokens[0] != id) std::abort();
  }
}

}  // namespace

/// Byte 0 selects the kind of file; vocab.json and merges.txt have a zero byte between them.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 3 == 0) {
      check(BpeRanks::parse_tiktoken(text, "ranks"));
    } else if (data[0] % 3 == 1) {
      check(BpeRanks::parse_tiktoken(byte_lines() + text, "ranks"));
    } else {
      const std::size_t end = text.find('\0');
      check(BpeRanks::parse_merges(text.substr(0, end), "vocab",
                                   end == std::string::npos ? "" : text.substr(end + 1), "merges"));
    }
  } catch (const mylos::Error& error) {
    if (error.code() != mylos::ExitCode::bad_data) std::abort();
  }
  return 0;
}
