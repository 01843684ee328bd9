// SPDX-License-Identifier: BSD-3-Clause
// Sampler: draws the next token from a model's logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/rng.hpp"

namespace mylos {

/// How tokens are drawn. Meaning and order of the steps are those of `generate` in transformers 5: repetition
/// penalty, temperature, top-k, top-p.
struct Sampling {
  /// Divides the logits; 0 takes the most likely token, of equal ones that with the lowest id.
  double temperature = 1.0;
  /// Keeps the k most likely tokens and those that are as likely as the last of them; 0 keeps all.
  std::int64_t top_k = 0;
  /// Keeps the fewest most likely tokens whose probabilities, after top-k, add up to at least this. Of
  /// equally likely tokens, those with higher ids are kept first. One token is always kept.
  double top_p = 1.0;
  /// Divides positive logits of tokens that have been seen, and multiplies negative ones. It applies at
  /// temperature 0, too.
  double repetition_penalty = 1.0;
  std::uint64_t seed = 1;
};

/// Throws ExitCode::usage, naming the option of `mylos generate`, if a value has no meaning.
void check_sampling(const Sampling& sampling);

/// What a draw depends on besides seed and logits. All count from 0.
struct DrawPlace {
  std::uint32_t prompt = 0;
  std::uint32_t sample = 0;    ///< among the samples of the prompt
  std::uint32_t position = 0;  ///< among the tokens of the sample
};

struct DrawnToken {
  std::int32_t id = 0;
  /// In nats, of the model's own distribution: log softmax of the logits as they are, over the whole
  /// vocabulary, whatever `Sampling` says.
  float logprob = 0.0F;
};

/// Draws tokens, for one thread at a time. Calls do not allocate and do not depend on earlier calls.
class Sampler {
 public:
  /// Tokens from which `Sampler` draws, in ascending order.
  struct Candidates {
    std::span<const std::int32_t> ids;
    std::span<const float> weights;  ///< probability, relative to that of the most likely candidate
  };

  /// `vocab_size` is the number of logits. Only ids below `allowed`, which the tokenizer has, are drawn; the
  /// others are no candidates in any of the steps.
  Sampler(const Sampling& sampling, std::int64_t vocab_size, std::int64_t allowed);

  /// Draws from `logits`, one for each id of the vocabulary. `seen` are all tokens before, of the prompt and
  /// of the sample, in any order, also repeated; they matter only for the repetition penalty. Throws
  /// ExitCode::numerical if a logit is not finite, or no longer is after penalty and temperature.
  DrawnToken sample(std::span<const float> logits, std::span<const std::int32_t> seen,
                    const DrawPlace& place);

  /// The candidates of `sample`, valid until the next call.
  Candidates candidates(std::span<const float> logits, std::span<const std::int32_t> seen);

 private:
  void set_scores(std::span<const float> logits, std::span<const std::int32_t> seen);
  void keep_first_largest(float top);
  void keep_top_k(std::size_t k);
  void keep_top_p(double total);
  /// Keeps the candidates i for which `keeps(i)`, in their order.
  template <class Keeps>
  void keep_if(const Keeps& keeps);

  Sampling sampling_;
  PhiloxKey key_;
  std::size_t allowed_;
  // The candidates: the first `count_` of each.
  std::size_t count_ = 0;
  std::vector<std::int32_t> ids_;
  std::vector<float> scores_;   // logits after penalty and temperature
  std::vector<float> weights_;  // exp(score - largest score)
  // Work space.
  std::vector<float> block_tops_, selection_;
  std::vector<std::uint32_t> order_;
};

}  // namespace mylos
