// SPDX-License-Identifier: BSD-3-Clause
// TransformerBlock: attention and feed-forward, each preceded by a layernorm, on the residual stream.
#pragma once

#include <optional>

#include "core/model/block.hpp"
#include "core/model/expert_layer.hpp"

namespace mylos {

/// x2 = x + dropout(attention(layernorm(x)) Wo + bo); y = x2 + dropout(gelu(layernorm(x2) Wf + bf) Wp + bp).
/// In a block with experts (ExpertLayer), these take the place of the feed-forward layer, or are added to it.
class TransformerBlock final : public Block {
 public:
  TransformerBlock(const ModelConfig& model, const ParameterTable& table, std::int64_t layer);
  /// Adds the block's parameters to the last unit of `table`. Along the tensor axis, the matrices are split
  /// as in Shoeybi et al., "Megatron-LM", 2019, section 3.
  static void declare(ParameterTable& table, const ModelConfig& model, std::int64_t layer);

  static std::string block_name(std::int64_t layer) { return fmt::format("h.{}", layer); }
  std::string name() const override { return name_; }
  void forward(Recorder& run, TensorRef input, TensorRef output) const override;
  void backward(Recorder& run, TensorRef input, TensorRef output_gradient,
                TensorRef input_gradient) const override;

 private:
  struct Activations;  // tensors that the forward pass writes
  struct DenseLayer {
    const Parameter &up, &up_bias;      // (C, F), (F)
    const Parameter &down, &down_bias;  // (F, C), (C)
    std::int64_t inner;                 // the rank's part of F
  };

  Activations activations(Recorder& run) const;
  AttentionForward attention(Recorder& run, const Activations& a) const;
  /// Appends the new keys and values to the cache, and attends to it.
  void attend_to_cache(Recorder& run, const Activations& a) const;
  Dropout dropout(const Recorder& run, const char* site) const;
  /// Passes the gradient (n, C) of the residual stream back through a residual dropout.
  TensorRef backpropagate_dropout(Recorder& run, const char* site, TensorRef gradient) const;
  void forward_mlp(Recorder& run, const Activations& a, TensorRef output) const;
  /// Records the dense layer up to its last product, which it returns.
  LinearForward dense(Recorder& run, const Activations& a, const TensorRef& x) const;
  void backward_mlp(Recorder& run, const Activations& a, TensorRef output_gradient,
                    TensorRef middle_gradient) const;
  void backward_attention(Recorder& run, const Activations& a, TensorRef middle_gradient, TensorRef input,
                          TensorRef input_gradient) const;

  /// Records `weight` and `input`, the backward pass of a column-parallel product, and returns the gradient
  /// (n, C) with respect to the rank's rows of the input of the product. If the block is split, this gradient
  /// is a sum over the tensor axis (Shoeybi et al., "Megatron-LM", 2019, figure 3). The sum overlaps with
  /// `weight`.
  TensorRef backward_columns(Recorder& run, const char* name, const LinearBackwardWeight& weight,
                             const LinearBackwardInput& input) const;
  /// Returns whether the products that end the branches add the residual themselves: nothing lies between.
  bool adds_in_products(const Recorder& run) const;
  /// Returns `bias` on the one rank whose term of a divided product includes it.
  TensorRef bias_of_term(Recorder& run, const Parameter& bias) const;
  /// Records `product` into a tensor of this name and returns the sum of all ranks' terms.
  TensorRef sum_of(Recorder& run, const std::string& name, LinearForward product) const;
  /// Returns the rank's rows of the sum of all ranks' `terms` (B * T, C), or `terms` itself if the block is
  /// not split.
  TensorRef sum_if_split(Recorder& run, const char* name, TensorRef terms) const;

  std::string name_;
  std::int64_t width_;
  float dropout_;
  const Parameter &ln1_gamma_, &ln1_beta_;  // (C)
  const Parameter &qkv_, &qkv_bias_;        // (C, 3C), (3C)
  const Parameter &proj_, &proj_bias_;      // (C, C), (C)
  const Parameter &ln2_gamma_, &ln2_beta_;  // (C)
  std::optional<DenseLayer> dense_;         // next to experts, of their inner width
  std::optional<ExpertLayer> experts_;
  // This rank's part along the tensor axis.
  std::int64_t heads_, first_head_, head_dim_;
  bool is_split_;
};

}  // namespace mylos
