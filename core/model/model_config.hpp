// SPDX-License-Identifier: BSD-3-Clause
// The shape of a GPT-2.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/dtype.hpp"
#include "core/ops/expert_operations.hpp"

namespace mylos {

/// Which activations of the forward pass are recomputed in the backward pass instead of kept.
enum class Recompute : std::uint8_t {
  none,       ///< none
  selective,  ///< the outputs of layernorms and GELUs
  block,      ///< all, from each block's input
};

/// The kind with this name; throws ExitCode::bad_data if there is none.
RouterKind router_named(std::string_view name);
RouterNoise::Kind router_noise_named(std::string_view name);

/// A mixture of experts in the place of some blocks' feed-forward layers.
struct ExpertConfig {
  std::int64_t count = 0;      ///< E, experts of a layer; 0 for none
  std::int64_t per_token = 2;  ///< k
  std::int64_t width = 0;      ///< F, the inner width of an expert
  std::int64_t every = 1;      ///< blocks n, 2n, ..., counted from 1, have experts
  bool has_shared = false;     ///< a dense layer of inner width F is added for every token
  RouterKind router = RouterKind::topk_softmax;
  RouterNoise::Kind noise = RouterNoise::Kind::none;
  // In training:
  double capacity = 0.0;   ///< c: an expert takes c k T / E tokens of a sequence; 0 for all
  bool by_choice = false;  ///< first choices are taken before second ones (ExpertPlaces)
  float balance_loss = 0.01F;
  float z_loss = 0.0F;

  /// Whether a block, counted from 0, has experts.
  bool are_in(std::int64_t layer) const { return count > 0 && (layer + 1) % every == 0; }
  /// The most pairs of a sequence that an expert takes; 0 for no limit (Lepikhin et al., "GShard", 2020).
  std::int64_t places(std::int64_t tokens) const {
    if (capacity == 0.0) return 0;
    const double share =
        capacity * static_cast<double>(per_token) * static_cast<double>(tokens) / static_cast<double>(count);
    return std::min(tokens, static_cast<std::int64_t>(std::ceil(share)));
  }
};

/// "8 experts of width 3072, 2 per token, router topk_softmax": all that two models must have in common;
/// empty if there are none.
std::string experts_text(const ExpertConfig& experts);

/// Blocks that process a part of each sequence's tokens (Raposo et al., "Mixture-of-depths", 2024).
struct DepthConfig {
  double capacity = 0.0;   ///< d, the share of the tokens; 0 if no block is routed
  std::int64_t every = 2;  ///< blocks n, 2n, ..., counted from 1, are routed

  /// Whether a block, counted from 0, is routed.
  bool are_in(std::int64_t layer) const { return capacity > 0.0 && (layer + 1) % every == 0; }
  /// The tokens that a routed block takes of a sequence in training.
  std::int64_t tokens(std::int64_t all) const {
    return std::min(all, static_cast<std::int64_t>(std::ceil(capacity * static_cast<double>(all))));
  }
};

/// "0.125 of the tokens in every 2 blocks": all that two models must have in common; empty if no block is
/// routed.
std::string depths_text(const DepthConfig& depths);

/// Radford et al., "Language models are unsupervised multitask learners", 2019.
struct ModelConfig {
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t width = 768;       ///< C, divisible by heads
  std::int64_t feed_forward = 0;  ///< inner width of the dense feed-forward layers; 0 for 4C
  std::int64_t context = 1024;    ///< positions, each with a learned embedding
  std::int64_t vocab = 50257;
  std::int64_t vocab_multiple = 128;  ///< the vocabulary in memory is padded to a multiple of this
  bool tied = true;                   ///< the head shares the token embedding
  float dropout = 0.0F;               ///< on embedding, attention probabilities and both residual branches
  /// The head computes logits in slices of about this many bytes at most, or of 64 rows or an eighth of all
  /// rows if that is more.
  std::int64_t logits_bytes = std::int64_t{128} << 20;

  ExpertConfig experts{};
  DepthConfig depths{};

  std::int64_t head_dim() const { return width / heads; }
  /// Of the dense feed-forward layers.
  std::int64_t inner_width() const { return feed_forward > 0 ? feed_forward : 4 * width; }
  std::int64_t padded_vocab() const { return (vocab + vocab_multiple - 1) / vocab_multiple * vocab_multiple; }
};

/// "width 768", and ", feed-forward 1024" if the inner width is not four times the width.
std::string width_text(const ModelConfig& model);

}  // namespace mylos
