// SPDX-License-Identifier: BSD-3-Clause
// The parameters of GPT-2, which its blocks declare.
#pragma once

#include <string>

#include "core/layout/parameter_table.hpp"
#include "core/model/model_config.hpp"

namespace mylos {

/// Standard deviation of the initial weights (Radford et al., 2018, section 4.1).
inline constexpr float initial_stddev = 0.02F;

/// Returns the parameters of the whole model. Unit 0 is the embedding, unit 1 + l is block l, the last unit
/// is the head. If the model is tied, the head owns no matrix.
ParameterTable parameters_of(const ModelConfig& model);

/// Adds a matrix (vocabulary, C) whose rows stand for tokens.
void add_token_matrix(ParameterTable& table, const ModelConfig& model, const std::string& name);
/// Adds weight and bias (C) of a layernorm.
void add_norm(ParameterTable& table, const ModelConfig& model, const std::string& name);

}  // namespace mylos
