// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/evaluator.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "parallel/gather_values.hpp"

namespace mylos {

namespace {

/// The number of bytes that each token of the vocabulary decodes to; <|endoftext|> has none.
std::vector<std::int64_t> byte_counts_of(const Tokenizer& tokenizer) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(tokenizer.vocab_size()), 0);
  for (std::uint16_t token = 0; token < tokenizer.end_of_text(); ++token)
    counts[token] = std::ssize(tokenizer.decode({&token, 1}));
  return counts;
}

/// A result in one integer: the bits of the loss, the token (16 bits) and whether it is correct.
std::int64_t packed(const TargetResult& result) {
  return static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(result.loss)) |
         std::int64_t{result.token} << 32U | std::int64_t{result.is_correct} << 48U;
}

TargetResult unpacked(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  return {.token = static_cast<std::int32_t>(bits >> 32U & 0xffffU),
          .loss = std::bit_cast<float>(static_cast<std::uint32_t>(bits)),
          .is_correct = (bits >> 48U) != 0};
}

/// Sums over targets.
struct Sums {
  double loss = 0.0;
  std::int64_t correct = 0;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  std::int64_t unknown = 0;  ///< targets of which the number of bytes is not known

  void add(const TargetResult& result, const std::vector<std::int64_t>& byte_counts) {
    loss += result.loss;
    correct += result.is_correct ? 1 : 0;
    ++count;
    const auto token = static_cast<std::size_t>(result.token);
    if (token < byte_counts.size()) {
      bytes += byte_counts[token];
    } else {
      ++unknown;
    }
  }
};

/// The result of all ranks. The losses are added as they are: of a diverged model, their sum exceeds any
/// integer, or is not finite. Every rank adds the ranks' sums in the same order, so all ranks get the same
/// result. Collective.
EvalResult result_of_all(const Sums& own, ComputeBackend& backend, const ProcessGrid& grid) {
  Sums all;
  const std::vector<std::int64_t> values = values_of_readers(
      backend, grid, {std::bit_cast<std::int64_t>(own.loss), own.correct, own.count, own.bytes, own.unknown});
  for (std::size_t i = 0; i < values.size(); i += 5) {
    all.loss += std::bit_cast<double>(values[i]);
    all.correct += values[i + 1];
    all.count += values[i + 2];
    all.bytes += values[i + 3];
    all.unknown += values[i + 4];
  }
  require(all.correct >= 0 && all.correct <= all.count, "a token is correct at most once");
  const auto total = static_cast<double>(all.count);
  EvalResult result{
      .loss = all.loss / total, .accuracy = static_cast<double>(all.correct) / total, .tokens = all.count};
  if (all.unknown == 0) result.bytes = all.bytes;
  return result;
}

/// A micro-batch of windows, consecutive ones in the rows.
struct Batch {
  const TokenDataset& dataset;
  const EvaluationWindows& windows;
  std::int64_t num_windows;  ///< the first ones are evaluated
  BatchShape shape;
  std::vector<std::int32_t> inputs = {}, targets = {};  ///< (B, T); -1 where there is none
  std::vector<TargetResult> results = {};               ///< of the counted targets

  std::int64_t counted(std::int64_t window) const {
    return window < num_windows ? windows[window].counted : 0;
  }

  /// Reads the windows from `first` on.
  void read(std::int64_t first) {
    const auto rows = static_cast<std::size_t>(shape.rows());
    inputs.assign(rows, -1);
    targets.assign(rows, -1);
    std::vector<std::int32_t> tokens;
    for (std::int64_t b = 0; b < shape.batch && first + b < num_windows; ++b) {
      const EvaluationWindows::Window window = windows[first + b];
      tokens.resize(static_cast<std::size_t>(window.inputs + 1));
      dataset.read(window.file, window.first, tokens);
      std::copy(tokens.begin(), tokens.end() - 1, inputs.begin() + b * shape.seq);
      std::copy(tokens.end() - window.counted, tokens.end(),
                targets.begin() + b * shape.seq + window.inputs - window.counted);
    }
  }

  /// Takes the results of the windows that were read and evaluated.
  void take(std::span<const float> losses, std::span<const std::int32_t> hits) {
    results.clear();
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] < 0) continue;
      // A token without a probability was not predicted, even if its logit is the largest.
      results.push_back(
          {.token = targets[i], .loss = losses[i], .is_correct = std::isfinite(losses[i]) && hits[i] != 0});
    }
  }
};

/// The results of all ranks' batches, of which the first rank's begins with window `first`. Collective.
std::vector<TargetResult> gather_results(const Batch& own, std::int64_t first, ComputeBackend& backend,
                                         const ProcessGrid& grid) {
  const int readers = grid.coordinates().num_readers();
  if (readers == 1 && grid.coordinates().extent(Axis::pipeline) == 1) return own.results;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(readers), 0);
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    for (std::int64_t b = 0; b < own.shape.batch; ++b) counts[rank] += own.counted(first++);
  }
  const auto most = static_cast<std::size_t>(*std::ranges::max_element(counts));
  std::vector<std::int64_t> values(most, 0);
  std::ranges::transform(own.results, values.begin(), packed);
  const std::vector<std::int64_t> all_values = values_of_readers(backend, grid, values);
  std::vector<TargetResult> all;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    for (std::int64_t i = 0; i < counts[rank]; ++i)
      all.push_back(unpacked(all_values[rank * most + static_cast<std::size_t>(i)]));
  }
  return all;
}

}  // namespace

std::optional<double> EvalResult::bits_per_byte() const {
  if (bytes.value_or(0) == 0) return std::nullopt;
  return loss * static_cast<double>(tokens) / std::numbers::ln2 / static_cast<double>(*bytes);
}

std::optional<EvalResult> evaluate(ModelExecutor& executor, ComputeBackend& backend,
                                   const TokenDataset& dataset, const ProcessGrid& grid,
                                   const EvalOptions& options) {
  const Coordinates& at = grid.coordinates();
  const int readers = at.num_readers();
  require(at.extent(loss_axes) == at.extent(sample_axes), "a rank has all positions of its samples");
  const EvaluationWindows windows(dataset, options.stride);
  const std::int64_t most = options.max_windows > 0 ? options.max_windows : windows.size();
  std::vector<Batch> batches(static_cast<std::size_t>(executor.evaluated_micro_batches()),
                             {.dataset = dataset,
                              .windows = windows,
                              .num_windows = std::min(most, windows.size()),
                              .shape = executor.shape()});
  const std::int64_t num_windows = batches.front().num_windows;
  const std::int64_t windows_of_batch = executor.shape().batch * readers;
  std::vector<std::int64_t> byte_counts;
  if (options.tokenizer != nullptr) byte_counts = byte_counts_of(*options.tokenizer);
  Sums sums;
  const int of_agreement = passes_per_agreement(at);
  int round = 0;
  for (std::int64_t base = 0; base < num_windows; base += windows_of_batch * std::ssize(batches)) {
    if (round++ % of_agreement == 0 && options.is_interrupted()) return std::nullopt;
    const auto first_of = [&](std::size_t i) {
      return base + windows_of_batch * static_cast<std::int64_t>(i);
    };
    for (std::size_t i = 0; executor.needs_tokens() && i < batches.size(); ++i) {
      batches[i].read(first_of(i) + executor.shape().batch * at.reader());
      executor.load_evaluation(batches[i].inputs, batches[i].targets, static_cast<int>(i));
    }
    executor.evaluate();
    for (std::size_t i = 0; i < batches.size(); ++i) {
      Batch& batch = batches[i];
      if (at.has_results()) {
        const auto number = static_cast<int>(i);
        batch.take(executor.evaluation_losses(number), executor.evaluation_correct(number));
        for (const TargetResult& result : batch.results) sums.add(result, byte_counts);
      }
      if (options.take_targets) options.take_targets(gather_results(batch, first_of(i), backend, grid));
    }
  }
  return result_of_all(sums, backend, grid);
}

}  // namespace mylos
