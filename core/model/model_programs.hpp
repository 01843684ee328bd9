// SPDX-License-Identifier: BSD-3-Clause
// ModelPrograms: everything that a model runs, recorded once.
#pragma once

#include <set>

#include "core/model/block.hpp"
#include "core/model/model_config.hpp"
#include "core/model/program.hpp"
#include "core/model/recorder.hpp"

namespace mylos {

struct ModelPrograms {
  Roots roots;
  Program forward;   ///< of a training micro-batch
  Program backward;  ///< its loss, gradients and their sum; remakes what was not kept, block by block
  Program evaluate;  ///< losses and hits
  Program generate;  ///< the last entry is the logits (1, Vp) of row 0
  /// What else than gradients of weights comes of a backward pass: the sum of losses, and the gradients that
  /// blocks hand on.
  std::set<int> wanted;
};

/// Calls each block once per program. `table` outlives the result.
ModelPrograms record_programs(const ModelConfig& model, const ParameterTable& table,
                              const ProgramConfig& config);

}  // namespace mylos
