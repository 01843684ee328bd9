// SPDX-License-Identifier: BSD-3-Clause
// The formulas of make_expert_reference.py for weights and tokens, and the configurations in its results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/rng.hpp"
#include "core/model/model_config.hpp"
#include "io/json.hpp"

namespace mylos {

inline std::uint64_t bits(std::uint64_t stream, std::uint64_t i) {
  return mix64(0x9e3779b97f4a7c15ULL * ((stream << 32U) + i + 1)) >> 40U;
}

inline double unit(std::uint64_t stream, std::uint64_t i) {
  return static_cast<double>(bits(stream, i)) / 8388608.0 - 1.0;
}

/// The first weights of a tensor of the list.
inline std::vector<float> first_weights(const Json& tensor, std::uint64_t number, std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(tensor.real("centre") + tensor.real("spread") * unit(number, i));
  return values;
}

/// The global batch (8, T + 1) of step `step`, from 0 on.
inline std::vector<std::int32_t> tokens_of(std::uint64_t stream, std::uint64_t step,
                                           const ModelConfig& model) {
  constexpr std::uint64_t rows = 8;
  std::vector<std::int32_t> tokens;
  for (std::uint64_t row = step * rows; row < (step + 1) * rows; ++row) {
    std::uint64_t token = 0;
    for (std::uint64_t t = 0; t <= static_cast<std::uint64_t>(model.context); ++t) {
      const std::uint64_t drawn = bits(stream + row, t);
      token = (t == 0 ? drawn : 3 * token + drawn % 8) % static_cast<std::uint64_t>(model.vocab);
      tokens.push_back(static_cast<std::int32_t>(token));
    }
  }
  return tokens;
}

inline ExpertConfig experts_of(const Json& config, std::int64_t dense_width) {
  const std::int64_t given = config.integer("expert_width");
  return {.count = config.integer("experts"),
          .per_token = config.integer("experts_per_token"),
          .width = given > 0 ? given : dense_width,
          .every = config.integer("expert_every"),
          .has_shared = config.boolean("shared_expert"),
          .router = router_named(config.text("router")),
          .capacity = config.real("expert_capacity"),
          .by_choice = config.text("expert_order") == "choice",
          .balance_loss = static_cast<float>(config.real("balance_loss")),
          .z_loss = static_cast<float>(config.real("router_z_loss"))};
}

}  // namespace mylos
