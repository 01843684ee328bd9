// SPDX-License-Identifier: BSD-3-Clause
#include "app/evaluator.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "parallel/gather_values.hpp"

namespace mylos {

std::optional<EvalResult> evaluate(ModelExecutor& executor, ComputeBackend& backend,
                                   const TokenDataset& dataset, std::int64_t max_windows,
                                   const ProcessGrid& grid, const std::function<bool()>& is_interrupted) {
  const int readers = grid.coordinates().extent(sample_axes);
  const int reader = grid.coordinates().index(sample_axes);
  const BatchShape& shape = executor.shape();
  const std::int64_t available = dataset.num_sequential();
  const std::int64_t windows = max_windows > 0 ? std::min(max_windows, available) : available;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.batch * (shape.seq + 1)));

  double loss = 0.0;
  std::int64_t correct = 0;
  std::int64_t count = 0;
  for (std::int64_t base = 0; base < windows; base += shape.batch * readers) {
    if (is_interrupted()) return std::nullopt;
    const std::int64_t first = base + shape.batch * reader;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const std::span<std::int32_t> row(tokens.data() + b * (shape.seq + 1),
                                        static_cast<std::size_t>(shape.seq + 1));
      if (first + b < windows) {
        dataset.sequential(first + b, row.data());
        count += shape.seq;
      } else {
        std::ranges::fill(row, -1);
      }
    }
    executor.load_evaluation(tokens);
    executor.evaluate();
    const std::span<const float> losses = executor.evaluation_losses();
    const std::span<const std::int32_t> hits = executor.evaluation_correct();
    for (std::size_t i = 0; i < losses.size(); ++i) {
      loss += losses[i];
      // A token without a probability was not predicted, even if its logit is the largest.
      if (std::isfinite(losses[i])) correct += hits[i];
    }
  }

  // The losses are added as they are: of a diverged model, their sum exceeds any integer, or is not finite.
  // Every rank adds the ranks' sums in the same order, so all ranks get the same result.
  double loss_of_all = 0.0;
  std::int64_t correct_of_all = 0;
  std::int64_t count_of_all = 0;
  const std::vector<std::int64_t> sums =
      gather_values(backend, grid.group(loss_axes), {std::bit_cast<std::int64_t>(loss), correct, count});
  for (std::size_t i = 0; i < sums.size(); i += 3) {
    loss_of_all += std::bit_cast<double>(sums[i]);
    correct_of_all += sums[i + 1];
    count_of_all += sums[i + 2];
  }
  require(correct_of_all >= 0 && correct_of_all <= count_of_all, "a token is correct at most once");
  const auto total = static_cast<double>(count_of_all);
  return EvalResult{.loss = loss_of_all / total,
                    .accuracy = static_cast<double>(correct_of_all) / total,
                    .tokens = count_of_all};
}

}  // namespace mylos
