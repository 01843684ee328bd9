// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/bpe_tokenizer.hpp"

#include <utility>

#include "core/base/error.hpp"
#include "io/tokens/bpe_encoder.hpp"

namespace mylos {

namespace {

class PieceEncoder final : public Encoder {
 public:
  PieceEncoder(const BpeMerges& merges, std::mutex& long_pieces) : encoder_(merges, long_pieces) {}

  void append(std::string_view text, std::vector<std::uint16_t>& tokens) override {
    const std::size_t before = tokens.size();
    tokens.resize(before + text.size() + BpeEncoder::spare_tokens);
    const std::uint16_t* const end = encoder_.encode(text, tokens.data() + before);
    tokens.resize(static_cast<std::size_t>(end - tokens.data()));
  }

 private:
  BpeEncoder encoder_;
};

}  // namespace

BpeTokenizer::BpeTokenizer(BpeRanks ranks) : ranks_(std::move(ranks)), digest_(ranks_.digest()) {}

std::unique_ptr<Encoder> BpeTokenizer::encoder() const {
  return std::make_unique<PieceEncoder>(ranks_.merges(), long_pieces_);
}

BpeRanks read_gpt2_ranks(const std::filesystem::path& path) {
  BpeRanks ranks = BpeRanks::read(path);
  constexpr std::string_view digest_of_gpt2 = "aa5ef69a716d8a563cb2fbe95939bd2d";
  if (ranks.digest() != digest_of_gpt2) {
    fail(ExitCode::bad_data,
         "{} does not hold GPT-2's ranks: {} tokens with the digest {}, not 50256 with {}", path.string(),
         ranks.tokens().size(), ranks.digest(), digest_of_gpt2);
  }
  return ranks;
}

}  // namespace mylos
