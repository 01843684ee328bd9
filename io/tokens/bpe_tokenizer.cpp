// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/bpe_tokenizer.hpp"

#include <utility>

#include "core/base/error.hpp"
#include "io/tokens/bpe_encoder.hpp"

namespace mylos {

BpeTokenizer::BpeTokenizer(BpeRanks ranks) : ranks_(std::move(ranks)), digest_(ranks_.digest()) {}

std::unique_ptr<Encoder> BpeTokenizer::encoder() const {
  return std::make_unique<BpeEncoder>(ranks_.merges(), long_pieces_);
}

BpeRanks read_gpt2_ranks(const std::filesystem::path& path) {
  BpeRanks ranks = BpeRanks::read(path);
  if (ranks.digest() != gpt2_digest) {
    fail(ExitCode::bad_data,
         "{} does not hold GPT-2's ranks: {} tokens with the digest {}, not 50256 with {}", path.string(),
         ranks.tokens().size(), ranks.digest(), gpt2_digest);
  }
  return ranks;
}

}  // namespace mylos
