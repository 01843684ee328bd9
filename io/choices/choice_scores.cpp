// SPDX-License-Identifier: BSD-3-Clause
#include "io/choices/choice_scores.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "core/base/error.hpp"
#include "io/json.hpp"

namespace mylos {

static_assert(std::is_trivially_copyable_v<ChoiceScore>);

namespace {

/// NumPy's argmin.
std::int64_t index_of_smallest(const std::vector<double>& values) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < values.size() && !std::isnan(values[best]); ++i) {
    if (values[i] < values[best] || std::isnan(values[i])) best = i;
  }
  return static_cast<std::int64_t>(best);
}

Rate rate_of(std::int64_t count, std::int64_t examples) {
  const auto k = static_cast<double>(count);
  const auto n = static_cast<double>(examples);
  const double variance =
      examples < 2 ? std::numeric_limits<double>::quiet_NaN() : k * (n - k) / (n * (n - 1));
  return {.mean = k / n, .error = std::sqrt(variance / n)};
}

}  // namespace

ChoiceScore score_choice(const EncodedChoice& choice, std::span<const EndingLoss> losses) {
  require(losses.size() == choice.endings.size(), "a loss for each ending");
  std::vector<double> sums;
  std::vector<double> normalised;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::int64_t length = choice.code_points.empty() ? losses[i].tokens : choice.code_points[i];
    sums.push_back(losses[i].loss);
    normalised.push_back(losses[i].loss / static_cast<double>(length));
  }
  const EndingLoss& right = losses[static_cast<std::size_t>(choice.label)];
  return {.number = choice.number,
          .right_loss = right.loss,
          .right_tokens = right.tokens,
          .is_right = index_of_smallest(sums) == choice.label,
          .is_right_normalised = index_of_smallest(normalised) == choice.label,
          .is_greedy = right.is_greedy};
}

std::string choice_line(const EncodedChoice& choice, std::span<const EndingLoss> losses) {
  std::vector<Json> sums;
  std::vector<Json> tokens;
  for (const EndingLoss& ending : losses) {
    sums.emplace_back(ending.loss);
    tokens.emplace_back(ending.tokens);
  }
  return Json::object({{"example", choice.number},
                       {"losses", Json::array(sums)},
                       {"tokens", Json::array(tokens)},
                       {"label", choice.label}})
      .dump();
}

ChoiceSummary summarize_choices(std::vector<ChoiceScore> scores) {
  require(!scores.empty(), "at least one example has a score");
  std::ranges::sort(scores, {}, &ChoiceScore::number);
  require(std::ranges::adjacent_find(scores, {}, &ChoiceScore::number) == scores.end(),
          "an example has one score");
  ChoiceSummary summary;
  summary.examples = std::ssize(scores);
  std::int64_t tokens = 0;
  double loss = 0.0;
  for (const ChoiceScore& score : scores) {
    loss += score.right_loss;
    tokens += score.right_tokens;
  }
  const auto rate = [&](bool ChoiceScore::*property) {
    return rate_of(std::ranges::count(scores, true, property), summary.examples);
  };
  summary.accuracy = rate(&ChoiceScore::is_right);
  summary.normalised_accuracy = rate(&ChoiceScore::is_right_normalised);
  summary.greedy = rate(&ChoiceScore::is_greedy);
  summary.right_loss = loss / static_cast<double>(summary.examples);
  summary.right_token_loss = loss / static_cast<double>(tokens);
  return summary;
}

}  // namespace mylos
