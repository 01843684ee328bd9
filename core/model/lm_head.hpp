// SPDX-License-Identifier: BSD-3-Clause
// LmHead: final layernorm, logits and loss, in slices of rows so that B·T × V never exists.
#pragma once

#include "core/model/block.hpp"

namespace mylos {

/// In training the forward action leaves everything to backward, where each slice's logits become its loss
/// and, in place, its gradient. In evaluation forward computes losses and hits.
class LmHead final : public Block {
 public:
  LmHead(const ModelConfig& model, const ParameterTable& table);

  /// The head's own unit and, where tied, the embedding.
  std::vector<int> units() const override;
  std::vector<ActivationSpec> activations(const BatchShape& shape) const override;
  void forward(const BlockContext& context, TensorRef input, TensorRef output) const override;
  void backward(const BlockContext& context, TensorRef input, TensorRef gradient) const override;

  /// The logits of one row of the last `forward` in evaluation; logits (1, Vp) compute type.
  void logits_of_row(const BlockContext& context, std::int64_t row, TensorRef logits) const;

  /// Rows of the slices in which the logits are made; the last one may have fewer.
  std::int64_t slice_rows(const BatchShape& shape) const;

 private:
  /// The vocabulary matrix as the weight (C, Vp) of a linear layer.
  TensorRef matrix_in(const TensorRef& flat) const;

  int unit_;
  int embedding_unit_;
  bool tied_;
  std::int64_t width_;
  std::int64_t vocab_;
  std::int64_t padded_vocab_;
  WeightSlot matrix_;        // (Vp, C), in the embedding where tied
  WeightSlot gamma_, beta_;  // (C)
};

}  // namespace mylos
