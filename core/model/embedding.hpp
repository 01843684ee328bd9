// SPDX-License-Identifier: BSD-3-Clause
// Embedding: token and position vectors, the start of the residual stream.
#pragma once

#include "core/model/block.hpp"

namespace mylos {

class Embedding final : public Block {
 public:
  Embedding(const ModelConfig& model, const ParameterTable& table);

  std::vector<int> units() const override { return {unit_}; }
  std::vector<ActivationSpec> activations(const BatchShape& shape) const override;
  void forward(const BlockContext& context, TensorRef input, TensorRef output) const override;
  void backward(const BlockContext& context, TensorRef input, TensorRef gradient) const override;

 private:
  Dropout dropout(const BlockContext& context) const;

  int unit_;
  bool tied_;
  float dropout_;
  WeightSlot wte_;  // (Vp, C)
  WeightSlot wpe_;  // (S, C)
};

}  // namespace mylos
