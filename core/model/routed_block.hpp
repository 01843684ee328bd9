// SPDX-License-Identifier: BSD-3-Clause
// RoutedBlock: a block that processes some of the tokens, in a mixture of depths.
#pragma once

#include "core/model/transformer_block.hpp"

namespace mylos {

/// y = x + r (block(u) - u) for the tokens u that the block takes, with r = x w; y = x for all others (Raposo
/// et al., "Mixture-of-depths", 2024, section 3). The block sees the tokens that it takes as a sequence.
///
/// In training it takes the K tokens of each sequence with the largest r. That depends on later tokens, so a
/// predictor gelu(x V1 + c1) V2 + c2 learns whether a token is taken; in evaluation and generation, the block
/// takes those for which it is above 0 (section 3.5). Its gradient ends at x.
///
/// All ranks along the tensor axis have all rows, so they choose alike and have the same gradients.
class RoutedBlock final : public Block {
 public:
  RoutedBlock(const ModelConfig& model, const ParameterTable& table, std::int64_t layer);
  /// Adds the parameters of router and predictor to the last unit of `table`.
  static void declare_routers(ParameterTable& table, const ModelConfig& model, std::int64_t layer);

  std::string name() const override { return block_.name(); }
  void forward(Recorder& run, TensorRef input, TensorRef output) const override;
  void backward(Recorder& run, TensorRef input, TensorRef output_gradient,
                TensorRef input_gradient) const override;

 private:
  struct Taken;       // what the forward pass writes
  struct Prediction;  // the predictor's activations

  Taken taken(Recorder& run, const Recorder& packed) const;
  /// The pass through the block itself, with as many tokens as it takes.
  Recorder packed(Recorder& run) const;
  Prediction predict(Recorder& run, const TensorRef& x) const;
  void learn_to_predict(Recorder& run, const TensorRef& x, const TensorRef& places) const;
  void choose(Recorder& run, const TensorRef& x, const Taken& t) const;

  TransformerBlock block_;
  std::int64_t width_;
  DepthConfig depths_;
  RoutingStatistics::Range statistics_;
  const Parameter& router_;             // (C, 1)
  const Parameter &up_, &up_bias_;      // (C, C / 8), (C / 8)
  const Parameter &down_, &down_bias_;  // (C / 8, 1), (1)
};

}  // namespace mylos
