// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/parameters.hpp"

#include <cmath>

#include "core/model/embedding.hpp"
#include "core/model/expert_layer.hpp"
#include "core/model/lm_head.hpp"
#include "core/model/routed_block.hpp"
#include "core/model/transformer_block.hpp"

namespace mylos {

float residual_stddev(const ModelConfig& model) {
  return initial_stddev / std::sqrt(2.0F * static_cast<float>(model.layers));
}

ParameterTable parameters_of(const ModelConfig& model, bool ends_are_apart) {
  ParameterTable table;
  const bool has_tied_unit = model.tied && ends_are_apart;
  table.begin_unit("embedding");
  if (!has_tied_unit) add_token_matrix(table, model, "wte.weight");
  Embedding::declare(table, model);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    table.begin_unit(fmt::format("block {}", layer));
    TransformerBlock::declare(table, model, layer);
    if (model.depths.are_in(layer)) RoutedBlock::declare_routers(table, model, layer);
  }
  table.begin_unit("head");
  LmHead::declare(table, model);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (!model.experts.are_in(layer)) continue;
    table.begin_unit(fmt::format("experts {}", layer));
    ExpertLayer::declare_experts(table, model, layer);
  }
  if (has_tied_unit) {
    table.begin_unit("tied matrix");
    add_token_matrix(table, model, "wte.weight");
  }
  table.lay_out();
  return table;
}

int ModelCuts::first_block(const ModelConfig& model, int chunk) const {
  const auto blocks = static_cast<int>(model.layers) + 1;
  if (chunk == chunks) return blocks;
  if (chunk == 0 || places.empty()) return (blocks + 1) * chunk / chunks;  // the head counts as a block
  return places[static_cast<std::size_t>(chunk) - 1];
}

std::set<int> ModelCuts::units(const ModelConfig& model, const std::set<int>& held) const {
  const std::set<int> own = blocks(model, held);
  std::set<int> units = own;
  auto unit = static_cast<int>(model.layers) + 2;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (!model.experts.are_in(layer)) continue;
    if (own.contains(static_cast<int>(layer) + 1)) units.insert(unit);
    ++unit;
  }
  return units;
}

std::set<int> ModelCuts::blocks(const ModelConfig& model, const std::set<int>& held) const {
  std::set<int> units;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (!held.empty() && !held.contains(chunk)) continue;
    for (int block = first_block(model, chunk); block < first_block(model, chunk + 1); ++block)
      units.insert(block);
    if (chunk + 1 == chunks) units.insert(static_cast<int>(model.layers) + 1);
  }
  return units;
}

void add_token_matrix(ParameterTable& table, const ModelConfig& model, const std::string& name) {
  Parameter& matrix =
      table.add(name, {model.vocab, model.width}, {{vocab_dimension, model.vocab}, {"width", model.width}},
                Initialisation::normal, initial_stddev);
  if (model.tied) matrix.placement[static_cast<std::size_t>(Axis::pipeline)].kind = Placement::Kind::summed;
  matrix.row_multiple = model.vocab_multiple;
  matrix.padded_rows = model.padded_vocab();
}

void add_norm(ParameterTable& table, const ModelConfig& model, const std::string& name) {
  for (const auto& [part, initialisation] :
       {std::pair(".weight", Initialisation::ones), std::pair(".bias", Initialisation::zeros)})
    table.add(name + part, {model.width}, {{"width", model.width}}, initialisation).is_norm = true;
}

}  // namespace mylos
