// SPDX-License-Identifier: BSD-3-Clause
// TransformerBlock: attention and feed-forward, each behind a layernorm and added to the residual stream.
#pragma once

#include "core/model/block.hpp"

namespace mylos {

/// x2 = x + dropout(attention(layernorm(x)) Wo + bo); y = x2 + dropout(gelu(layernorm(x2) Wf + bf) Wp + bp).
class TransformerBlock final : public Block {
 public:
  TransformerBlock(const ModelConfig& model, const ParameterTable& table, std::int64_t layer,
                   Recompute recompute);

  std::vector<int> units() const override { return {unit_}; }
  std::vector<ActivationSpec> activations(const BatchShape& shape) const override;
  void forward(const BlockContext& context, TensorRef input, TensorRef output) const override;
  void backward(const BlockContext& context, TensorRef input, TensorRef gradient) const override;

 private:
  struct Activations;  // the buffers as tensors

  Activations tensors(const BlockContext& context) const;
  AttentionForward attention(const BlockContext& context, const Activations& a) const;
  Dropout dropout(const BlockContext& context, const char* site) const;
  /// The forward pass up to the GELU; what a backward pass needs.
  void forward_inner(const BlockContext& context, const Activations& a, TensorRef input) const;
  void backward_mlp(const BlockContext& context, const Activations& a, TensorRef gradient) const;
  void backward_attention(const BlockContext& context, const Activations& a, TensorRef input,
                          TensorRef gradient) const;

  int unit_;
  std::int64_t layer_;
  std::int64_t width_;
  std::int64_t heads_;
  float dropout_;
  Recompute recompute_;
  WeightSlot ln1_gamma_, ln1_beta_;  // (C)
  WeightSlot qkv_, qkv_bias_;        // (C, 3C), (3C)
  WeightSlot proj_, proj_bias_;      // (C, C), (C)
  WeightSlot ln2_gamma_, ln2_beta_;  // (C)
  WeightSlot up_, up_bias_;          // (C, 4C), (4C)
  WeightSlot down_, down_bias_;      // (4C, C), (C)
};

}  // namespace mylos
