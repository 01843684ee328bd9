// SPDX-License-Identifier: BSD-3-Clause
// evaluate: loss and accuracy over the windows of a token file, shared among the ranks that read samples.
#pragma once

#include <cstdint>

#include "io/tokens/token_dataset.hpp"
#include "parallel/engine/model_executor.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

struct EvalResult {
  double loss = 0.0;      ///< mean, nats a token
  double accuracy = 0.0;  ///< share of tokens that have the largest logit
  std::int64_t tokens = 0;
};

/// Reads windows 0 .. max_windows - 1 in file order (0: all). Each token counts once, whatever the layout.
/// Collective.
EvalResult evaluate(ModelExecutor& executor, ComputeBackend& backend, const TokenDataset& dataset,
                    std::int64_t max_windows, const ProcessGrid& grid);

}  // namespace mylos
