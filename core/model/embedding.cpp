// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/embedding.hpp"

#include "core/model/parameters.hpp"
#include "core/model/residual_stream.hpp"

namespace mylos {

Embedding::Embedding(const ModelConfig& model, const ParameterTable& table)
    : dropout_(model.dropout), wte_(table.find("wte.weight")), wpe_(table.find("wpe.weight")) {}

void Embedding::declare(ParameterTable& table, const ModelConfig& model) {
  table.add("wpe.weight", {model.context, model.width}, {{"context", model.context}, {"width", model.width}},
            Initialisation::normal, initial_stddev);
}

void Embedding::forward(Recorder& run, TensorRef /*input*/, TensorRef output) const {
  const Dropout drop = run.dropout(dropout_, "dropout.embedding");
  const BatchShape& s = run.shape();
  const bool is_part = wte_.is_split(Axis::tensor);
  const bool has_positions = !is_part || wte_.box.start[0] == 0;  // only one rank's term includes wpe
  const bool has_part_of_rows = s.residual_parts > 1;
  const bool drops = drop.probability > 0.0F;
  const std::int64_t width = output.shape[1];
  TensorRef sum = output;
  if (drops || has_part_of_rows) sum = run.tensor("sum", s.dtype, {s.rows(), width});
  run(EmbeddingForward{.tokens = run.tokens(),
                       .wte = run.weight(wte_),
                       .wpe = has_positions ? run.weight(wpe_) : TensorRef(),
                       .positions = has_positions && run.has_cache() ? run.positions() : TensorRef(),
                       .out = sum.reshaped({s.batch, s.seq, width}),
                       .first_token = wte_.box.start[0]});
  if (is_part) sum = sum_of_terms(run, "sum.own", sum);
  if (!is_part && has_part_of_rows) sum = sum.rows(s.first_residual_row(), s.residual_rows());
  if (drops || sum.data != output.data) record(run, DropoutAdd{.x = sum, .y = output, .dropout = drop});
}

void Embedding::backward(Recorder& run, TensorRef /*input*/, TensorRef output_gradient,
                         TensorRef /*input_gradient*/) const {
  const Dropout drop = run.dropout(dropout_, "dropout.embedding");
  const BatchShape& s = run.shape();
  const std::int64_t width = output_gradient.shape[1];
  TensorRef gradient = output_gradient;
  if (drop.probability > 0.0F) {
    gradient = run.tensor_like("d.sum", output_gradient);
    record(run, DropoutAdd{.x = output_gradient, .y = gradient, .dropout = drop});
  }
  run(EmbeddingBackward{.tokens = run.tokens(),
                        .dout = all_rows(run, "d.sum.all", gradient).reshaped({s.batch, s.seq, width}),
                        .dwte = run.gradient(wte_),
                        .dwpe = run.gradient(wpe_),
                        .first_token = wte_.box.start[0]});
}

}  // namespace mylos
