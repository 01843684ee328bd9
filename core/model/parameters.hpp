// SPDX-License-Identifier: BSD-3-Clause
// The parameters of GPT-2, which its blocks declare.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/model/model_config.hpp"

namespace mylos {

/// Standard deviation of the initial weights (Radford et al., 2018, section 4.1).
inline constexpr float initial_stddev = 0.02F;

/// The standard deviation of the initial weights of residual projections: scaled by 1/sqrt(N), with N
/// residual layers, two per block (Radford et al., 2019, section 2.3).
float residual_stddev(const ModelConfig& model);

/// Returns the parameters of the whole model. Unit 0 is the embedding, unit 1 + l is block l, unit L + 1 is
/// the head. The units of the blocks' experts follow. If the model is tied, the head owns no matrix; if the
/// two ends of the model also lie on different ranks, the matrix is a unit of its own, the last, which both
/// ends have.
ParameterTable parameters_of(const ModelConfig& model, bool ends_are_apart = false);

/// How the blocks of a model are divided into chunks: block 0 is the embedding, block 1 + l is transformer
/// block l; the head goes with the last chunk.
struct ModelCuts {
  int chunks = 1;
  /// The first blocks of chunks 1, 2, ..., ascending; if empty, chunks are as even as possible.
  std::vector<int> places{};

  /// The first block of a chunk; for the number of chunks, the number of blocks.
  int first_block(const ModelConfig& model, int chunk) const;
  /// The blocks, and the units, of the chunks in `held`; of all chunks, if `held` is empty. The head counts
  /// as a block.
  std::set<int> blocks(const ModelConfig& model, const std::set<int>& held) const;
  std::set<int> units(const ModelConfig& model, const std::set<int>& held) const;
};

/// Adds a matrix (vocabulary, C) whose rows stand for tokens.
void add_token_matrix(ParameterTable& table, const ModelConfig& model, const std::string& name);
/// Adds weight and bias (C) of a layernorm.
void add_norm(ParameterTable& table, const ModelConfig& model, const std::string& name);

}  // namespace mylos
