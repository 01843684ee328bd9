// SPDX-License-Identifier: BSD-3-Clause
// evaluate: loss and accuracy over the windows of a data set, which are divided among the ranks that read
// samples.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "io/tokens/token_dataset.hpp"
#include "parallel/engine/model_executor.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

struct EvalResult {
  double loss = 0.0;      ///< mean, nats per token; infinite or NaN if a token's loss is
  double accuracy = 0.0;  ///< fraction of target tokens that have the largest logit and a finite loss
  std::int64_t tokens = 0;
};

/// Evaluates the first `max_windows` windows in file order (0: all windows). Each token counts once, whatever
/// the layout. `is_interrupted` is called before every batch and must return the same value on all ranks; if
/// it returns true, the result is empty. Collective.
std::optional<EvalResult> evaluate(
    ModelExecutor& executor, ComputeBackend& backend, const TokenDataset& dataset, std::int64_t max_windows,
    const ProcessGrid& grid, const std::function<bool()>& is_interrupted = [] { return false; });

}  // namespace mylos
