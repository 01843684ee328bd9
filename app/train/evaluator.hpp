// SPDX-License-Identifier: BSD-3-Clause
// evaluate: loss and accuracy over the windows of a data set, which are divided among the ranks that read
// samples.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "io/metrics/target_file.hpp"
#include "io/tokens/token_dataset.hpp"
#include "io/tokens/tokenizer.hpp"
#include "parallel/engine/model_executor.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

struct EvalResult {
  double loss = 0.0;      ///< mean, nats per token; infinite or NaN if a token's loss is
  double accuracy = 0.0;  ///< fraction of target tokens that have the largest logit and a finite loss
  std::int64_t tokens = 0;
  std::optional<std::int64_t> bytes = {};  ///< that the target tokens decode to, if that is known

  /// The sum of the losses, in bits, divided by `bytes`; empty if these are not known, or none.
  std::optional<double> bits_per_byte() const;
};

/// What `evaluate` reads and reports.
struct EvalOptions {
  std::int64_t max_windows = 0;             ///< evaluates only the first windows; 0: all
  std::optional<std::int64_t> stride = {};  ///< for EvaluationWindows
  /// The tokenizer of the data; null if it is not known. <|endoftext|> counts no bytes. If a rank with
  /// targets has none, or a target is outside its vocabulary, EvalResult::bytes is empty.
  const Tokenizer* tokenizer = nullptr;
  /// Receives, on every rank, the results of all targets in the order of the data, part by part. Set on all
  /// ranks or on none.
  std::function<void(std::span<const TargetResult>)> take_targets = {};
  /// Called before every batch; must return the same value on all ranks. If it returns true, the result is
  /// empty.
  std::function<bool()> is_interrupted = [] { return false; };
};

/// Evaluates EvaluationWindows in their order. Each target counts once, whatever the layout. Collective.
std::optional<EvalResult> evaluate(ModelExecutor& executor, ComputeBackend& backend,
                                   const TokenDataset& dataset, const ProcessGrid& grid,
                                   const EvalOptions& options);

}  // namespace mylos
