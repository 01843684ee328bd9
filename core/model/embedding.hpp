// SPDX-License-Identifier: BSD-3-Clause
// Embedding: token and position vectors, the start of the residual stream.
#pragma once

#include "core/model/block.hpp"

namespace mylos {

class Embedding final : public Block {
 public:
  Embedding(const ModelConfig& model, const ParameterTable& table);
  /// Adds the block's parameters to the last unit of `table`, except the token matrix.
  static void declare(ParameterTable& table, const ModelConfig& model);

  static std::string block_name() { return "embedding"; }
  std::string name() const override { return block_name(); }
  void forward(Recorder& run, TensorRef input, TensorRef output) const override;
  void backward(Recorder& run, TensorRef input, TensorRef output_gradient,
                TensorRef input_gradient) const override;

 private:
  float dropout_;
  const Parameter& wte_;  // (Vp, C) or part of it
  const Parameter& wpe_;  // (S, C)
};

}  // namespace mylos
