// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/embedding.hpp"

namespace mylos {

Embedding::Embedding(const ModelConfig& model, const ParameterTable& table)
    : dropout_(model.dropout), wte_(table.find("wte.weight")), wpe_(table.find("wpe.weight")) {}

void Embedding::forward(Recorder& run, TensorRef /*input*/, TensorRef output) const {
  const Dropout drop = run.dropout(dropout_, "dropout.embedding");
  const TensorRef sum = drop.probability > 0.0F ? run.tensor_like("sum", output) : output;
  run(EmbeddingForward{.tokens = run.tokens(), .wte = run.weight(wte_), .wpe = run.weight(wpe_), .out = sum});
  if (drop.probability > 0.0F) run(DropoutAdd{.x = sum, .y = output, .dropout = drop});
}

void Embedding::backward(Recorder& run, TensorRef /*input*/, TensorRef output_gradient,
                         TensorRef /*input_gradient*/) const {
  const Dropout drop = run.dropout(dropout_, "dropout.embedding");
  const TensorRef gradient =
      drop.probability > 0.0F ? run.tensor_like("d.sum", output_gradient) : output_gradient;
  if (drop.probability > 0.0F) run(DropoutAdd{.x = output_gradient, .y = gradient, .dropout = drop});
  run(EmbeddingBackward{
      .tokens = run.tokens(), .dout = gradient, .dwte = run.gradient(wte_), .dwpe = run.gradient(wpe_)});
}

}  // namespace mylos
