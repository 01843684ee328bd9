// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/block.hpp"
#include "core/model/embedding.hpp"
#include "core/model/lm_head.hpp"
#include "core/model/transformer_block.hpp"

namespace mylos {

std::vector<std::unique_ptr<Block>> make_gpt2(const ModelConfig& model, const ParameterTable& table,
                                              Recompute recompute) {
  std::vector<std::unique_ptr<Block>> blocks;
  blocks.push_back(std::make_unique<Embedding>(model, table));
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    blocks.push_back(std::make_unique<TransformerBlock>(model, table, layer, recompute));
  }
  blocks.push_back(std::make_unique<LmHead>(model, table));
  return blocks;
}

}  // namespace mylos
