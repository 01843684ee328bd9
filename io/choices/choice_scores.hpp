// SPDX-License-Identifier: BSD-3-Clause
// Scores of multiple choice questions, from the losses of their endings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/choices/choice_encoder.hpp"

namespace mylos {

/// What a model says about an ending.
struct EndingLoss {
  double loss = 0.0;        ///< nats, added over the targets of the ending's row
  std::int64_t tokens = 0;  ///< `num_targets` of the row
  bool is_greedy = false;   ///< each target is the token with the largest logit at its place
};

/// What counts of an example. Ranks may exchange it as bytes.
struct ChoiceScore {
  std::int64_t number = 0;  ///< of the example
  double right_loss = 0.0;  ///< nats, of the right ending
  std::int64_t right_tokens = 0;
  bool is_right = false;             ///< the right ending has the smallest loss
  bool is_right_normalised = false;  ///< of the losses divided by code points, or in the style llmc by tokens
  bool is_greedy = false;            ///< greedy decoding would give the right ending
};

/// The score of an example; `losses` has one entry for each of its endings. Of endings with equal losses the
/// first counts, and a NaN counts as smallest, as in NumPy's argmin. An ending without code points has an
/// infinite loss per code point.
ChoiceScore score_choice(const EncodedChoice& choice, std::span<const EndingLoss> losses);

/// A line of `--output`, without its newline: the JSON object {"example", "label", "losses", "tokens"} with
/// the number of the example and the losses and tokens of each ending. Losses that are not finite are null.
std::string choice_line(const EncodedChoice& choice, std::span<const EndingLoss> losses);

/// A mean of values that are 0 or 1, with its standard error: the standard deviation of the sample over the
/// root of its size, as in lm-evaluation-harness.
struct Rate {
  double mean = 0.0;
  double error = 0.0;  ///< NaN of a single value
};

/// The scores of all examples.
struct ChoiceSummary {
  std::int64_t examples = 0;
  Rate accuracy, normalised_accuracy, greedy;
  double right_loss = 0.0;        ///< nats per right ending, the mean over examples
  double right_token_loss = 0.0;  ///< nats per token of all right endings
};

/// Counts are integers and losses are added in the order of the examples, so the summary has the same bits
/// however `scores` were divided over ranks. There is at least one score; no example has two.
ChoiceSummary summarize_choices(std::vector<ChoiceScore> scores);

}  // namespace mylos
