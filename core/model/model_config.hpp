// SPDX-License-Identifier: BSD-3-Clause
// The shape of a GPT-2.
#pragma once

#include <cstdint>

#include "core/base/dtype.hpp"

namespace mylos {

/// Which activations of the forward pass are recomputed in the backward pass instead of kept.
enum class Recompute : std::uint8_t {
  none,       ///< none
  selective,  ///< the outputs of layernorms and GELUs
  block,      ///< all, from each block's input
};

/// Radford et al., "Language models are unsupervised multitask learners", 2019.
struct ModelConfig {
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t width = 768;     ///< C, divisible by heads
  std::int64_t context = 1024;  ///< positions, each with a learned embedding
  std::int64_t vocab = 50257;
  std::int64_t vocab_multiple = 128;  ///< the vocabulary in memory is padded to a multiple of this
  bool tied = true;                   ///< the head shares the token embedding
  float dropout = 0.0F;               ///< on embedding, attention probabilities and both residual branches
  /// The head computes logits in slices of about this many bytes at most, or of 64 rows or an eighth of all
  /// rows if that is more.
  std::int64_t logits_bytes = std::int64_t{128} << 20;

  std::int64_t head_dim() const { return width / heads; }
  std::int64_t padded_vocab() const { return (vocab + vocab_multiple - 1) / vocab_multiple * vocab_multiple; }
};

}  // namespace mylos
