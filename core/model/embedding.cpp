// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/embedding.hpp"

namespace mylos {

Embedding::Embedding(const ModelConfig& model, const ParameterTable& table)
    : unit_(table.find("wte.weight").unit),
      tied_(model.tied),
      dropout_(model.dropout),
      wte_(table.find("wte.weight")),
      wpe_(table.find("wpe.weight")) {}

std::vector<ActivationSpec> Embedding::activations(const BatchShape& /*shape*/) const {
  return {};
}

Dropout Embedding::dropout(const BlockContext& context) const {
  return {.probability = context.training ? dropout_ : 0.0F,
          .key = stream_key(context.seed, "dropout.embedding"),
          .first_sample = context.first_sample,
          .index = {},
          .scalars = context.scalars};
}

void Embedding::forward(const BlockContext& context, TensorRef /*input*/, TensorRef output) const {
  const UnitView& unit = context.units[0];
  context.run(EmbeddingForward{.tokens = context.tokens,
                               .wte = wte_.in(unit.weights),
                               .wpe = wpe_.in(unit.weights),
                               .out = output,
                               .position = 0});
  const Dropout drop = dropout(context);
  if (drop.probability > 0.0F) context.run(DropoutAdd{.x = output, .y = output, .dropout = drop});
}

void Embedding::backward(const BlockContext& context, TensorRef /*input*/, TensorRef gradient) const {
  const UnitView& unit = context.units[0];
  const Dropout drop = dropout(context);
  if (drop.probability > 0.0F) context.run(DropoutAdd{.x = gradient, .y = gradient, .dropout = drop});
  // The head has already put its share of a tied embedding there.
  context.run(EmbeddingBackward{.tokens = context.tokens,
                                .dout = gradient,
                                .dwte = wte_.in(unit.gradients),
                                .dwpe = wpe_.in(unit.gradients),
                                .position = 0,
                                .accumulate_wte = unit.accumulate || tied_,
                                .accumulate_wpe = unit.accumulate});
  context.listener->gradient_ready(unit_, 0, unit.gradients.size());
}

}  // namespace mylos
