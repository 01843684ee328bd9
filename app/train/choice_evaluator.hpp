// SPDX-License-Identifier: BSD-3-Clause
// The losses of multiple choice questions: rows of tokens of any length, read through the cache of keys and
// values, so that a row costs its own length and not the model's context.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/model/recorder.hpp"
#include "io/choices/choice_encoder.hpp"
#include "io/choices/choice_scores.hpp"
#include "parallel/engine/model_executor.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// The questions of a file, in tokens.
struct ChoiceQuestions {
  std::vector<EncodedChoice> questions;
  std::int64_t max_length = 0;  ///< inputs of a row at most: longer ones lose their beginning
  std::int64_t longest = 0;     ///< inputs of the longest row
  std::int64_t tokens = 0;      ///< inputs of all rows
  std::int64_t cut = 0;         ///< rows that lost their beginning
  std::string digest;           ///< of all of this
};

/// Reads and encodes at most `limit` questions for a model with `vocab` ids and `context` positions. Throws
/// like ChoiceFile and ChoiceEncoder, and ExitCode::usage if questions are text and `tokenizer` is null.
ChoiceQuestions read_choices(const std::filesystem::path& file, ChoiceStyle style,
                             std::optional<std::int64_t> limit, const Tokenizer* tokenizer,
                             std::int64_t vocab, std::int64_t context);

/// The cache for `evaluate_choices` on `readers` data ranks, with one pass of at most `most_tokens` tokens,
/// or of one piece.
CacheConfig choice_cache(const ChoiceQuestions& questions, std::int64_t most_tokens, std::int64_t readers);

/// The same for questions that are not known: it may be larger than needed.
CacheConfig choice_cache(std::int64_t context, std::int64_t most_tokens);

struct ChoiceResult {
  ChoiceSummary summary;      ///< of all questions, on every rank
  std::string lines;          ///< of this data rank's questions, in their order (choice_line)
  std::int64_t computed = 0;  ///< tokens that this rank's passes computed
};

/// Computes the losses with pass 0 over the cache. Question i is of data rank i mod D. `is_interrupted` is
/// called before every pass and must return the same value on all ranks; if it returns true, the result is
/// empty. Collective.
std::optional<ChoiceResult> evaluate_choices(
    ModelExecutor& executor, ComputeBackend& backend, const ProcessGrid& grid, const CacheConfig& cache,
    const ChoiceQuestions& questions, const std::function<bool()>& is_interrupted = [] { return false; });

/// "accuracy 29.55 % +- 0.46, normalised 31.14 % +- 0.46, ..."
std::string choices_text(const ChoiceSummary& summary);

}  // namespace mylos
