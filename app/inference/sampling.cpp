// SPDX-License-Identifier: BSD-3-Clause
// Loops over the vocabulary are written for the compiler's vectoriser, and this file is optimised for speed:
// with a small model, sampling is a noticeable part of the time per token.
#include "app/inference/sampling.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "core/base/error.hpp"
#include "io/models/finite.hpp"

namespace mylos {

namespace {

constexpr std::size_t lanes = 16;         // independent partial results, for vectors of any width
constexpr std::size_t block_scores = 32;  // of which keep_top_k first looks at the largest
constexpr float infinity = std::numeric_limits<float>::infinity();

float larger(float a, float b) {
  return a < b ? b : a;
}

float largest_of(std::span<const float> values) {
  float largest[lanes];
  std::ranges::fill(largest, -infinity);
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes)
    for (std::size_t lane = 0; lane < lanes; ++lane) largest[lane] = larger(largest[lane], values[i + lane]);
  for (; i < values.size(); ++i) largest[0] = larger(largest[0], values[i]);
  return *std::ranges::max_element(largest);
}

/// exp(x) for x <= 0 with a relative error below 2e-7; exp(-85) = 1e-37 for lower x.
float exp_of(float x) {
  constexpr float log2_e = 1.44269504F;
  // ln 2 in two parts, of which the first has few digits, so that its products with whole numbers are exact.
  constexpr float ln2_high = 0.693359375F, ln2_low = -2.12194440e-4F;
  constexpr float round_whole = 0x1.8p23F;  // adding it rounds to a whole number, in the lowest bits
  const float bounded = larger(x, -85.0F);
  const float shifted = bounded * log2_e + round_whole;
  const float whole = shifted - round_whole;
  const float rest = (bounded - whole * ln2_high) - whole * ln2_low;  // at most ln 2 / 2
  float series = 1.0F / 5040;
  series = series * rest + 1.0F / 720;
  series = series * rest + 1.0F / 120;
  series = series * rest + 1.0F / 24;
  series = series * rest + 1.0F / 6;
  series = series * rest + 0.5F;
  series = series * rest + 1.0F;
  series = series * rest + 1.0F;
  const float power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23U) + 0x3f800000U);
  return series * power;
}

double sum_of(std::span<const float> values) {
  double sums[lanes] = {};
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes)
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += values[i + lane];
  for (; i < values.size(); ++i) sums[0] += values[i];
  return std::reduce(std::begin(sums), std::end(sums));
}

/// Writes exp(value - top) of each value, where `top` is the largest, and returns their sum.
double exponentials(std::span<const float> values, float top, std::span<float> out) {
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = exp_of(values[i] - top);
  return sum_of(out.first(values.size()));
}

/// The index for a random number `at` in [0, 1), with probabilities in proportion to the weights, of which
/// one is 1.
std::size_t drawn_index(std::span<const float> weights, double at) {
  const double target = at * sum_of(weights);
  double sum = 0.0;
  std::size_t i = 0;
  for (; i + 1 < weights.size(); ++i) {
    sum += weights[i];
    if (sum > target) break;
  }
  return i;
}

}  // namespace

void check_sampling(const Sampling& sampling) {
  const auto check = [](bool good, const char* option, auto value, const char* rule) {
    if (!good) fail(ExitCode::usage, "--{}={} is not {}", option, value, rule);
  };
  // Beyond these bounds a float is 0 or infinite.
  const auto is_usable = [](double value) { return value >= 1e-30 && value <= 1e30; };
  check(sampling.temperature == 0.0 || is_usable(sampling.temperature), "temperature", sampling.temperature,
        "0 or a positive number between 1e-30 and 1e30");
  check(sampling.top_k >= 0, "top-k", sampling.top_k, "0 or a positive number");
  check(sampling.top_p >= 0.0 && sampling.top_p <= 1.0, "top-p", sampling.top_p, "between 0 and 1");
  check(is_usable(sampling.repetition_penalty), "repetition-penalty", sampling.repetition_penalty,
        "a positive number between 1e-30 and 1e30");
}

Sampler::Sampler(const Sampling& sampling, std::int64_t vocab_size, std::int64_t allowed)
    : sampling_(sampling),
      key_(stream_key(sampling.seed, "generate")),
      allowed_(static_cast<std::size_t>(std::min(allowed, vocab_size))) {
  require(allowed > 0 && vocab_size > 0, "a sampler has tokens to draw");
  check_sampling(sampling);
  const auto size = static_cast<std::size_t>(vocab_size);
  ids_.resize(allowed_);
  scores_.resize(allowed_);
  weights_.resize(size);
  block_tops_.resize(allowed_ / block_scores);
  selection_.resize(allowed_);
  order_.resize(allowed_);
}

DrawnToken Sampler::sample(std::span<const float> logits, std::span<const std::int32_t> seen,
                           const DrawPlace& place) {
  require(logits.size() == weights_.size(), "there is a logit for each id of the vocabulary");
  if (!are_finite(logits)) {
    fail(ExitCode::numerical, "the model's logits of token {} are not finite (prompt {}, sample {})",
         place.position + 1, place.prompt, place.sample);
  }
  const float top = largest_of(logits);
  const double log_sum = top + std::log(exponentials(logits, top, weights_));

  const Candidates drawable = candidates(logits, seen);
  std::size_t index = 0;
  if (count_ > 1) {
    const PhiloxBlock random = philox(key_, place.position, place.sample, place.prompt, 0);
    const std::uint64_t word = std::uint64_t{random.x[0]} << 32U | random.x[1];
    index = drawn_index(drawable.weights, static_cast<double>(word >> 11U) * 0x1.0p-53);
  }
  const std::int32_t id = drawable.ids[index];
  const double logprob = logits[static_cast<std::size_t>(id)] - log_sum;
  constexpr double lowest = std::numeric_limits<float>::lowest();
  return {.id = id, .logprob = static_cast<float>(std::max(logprob, lowest))};
}

Sampler::Candidates Sampler::candidates(std::span<const float> logits, std::span<const std::int32_t> seen) {
  set_scores(logits, seen);
  const float top = largest_of(scores_);
  if (!std::isfinite(top)) {
    fail(ExitCode::numerical, "the logits overflow at temperature {} and repetition penalty {}",
         sampling_.temperature, sampling_.repetition_penalty);
  }
  if (sampling_.temperature == 0.0) {
    keep_first_largest(top);
  } else {
    count_ = allowed_;
    std::iota(ids_.begin(), ids_.end(), 0);
    if (sampling_.top_k > 0) keep_top_k(static_cast<std::size_t>(sampling_.top_k));
    const double total = exponentials(std::span(scores_).first(count_), top, weights_);
    if (sampling_.top_p < 1.0) keep_top_p(total);
  }
  return {.ids = std::span(ids_).first(count_), .weights = std::span(weights_).first(count_)};
}

void Sampler::set_scores(std::span<const float> logits, std::span<const std::int32_t> seen) {
  // In float, as transformers: rounding decides which scores are equal.
  const float temperature = sampling_.temperature == 0.0 ? 1.0F : static_cast<float>(sampling_.temperature);
  if (temperature == 1.0F) {
    std::copy_n(logits.begin(), allowed_, scores_.begin());
  } else {
    for (std::size_t i = 0; i < allowed_; ++i) scores_[i] = logits[i] / temperature;
  }
  const auto penalty = static_cast<float>(sampling_.repetition_penalty);
  if (penalty == 1.0F) return;
  for (const std::int32_t id : seen) {
    const auto i = static_cast<std::size_t>(id);
    if (i >= allowed_) continue;
    scores_[i] = (logits[i] < 0.0F ? logits[i] * penalty : logits[i] / penalty) / temperature;
  }
}

void Sampler::keep_first_largest(float top) {
  count_ = 1;
  ids_[0] = static_cast<std::int32_t>(std::ranges::find(scores_, top) - scores_.begin());
  weights_[0] = 1.0F;
}

template <class Keeps>
void Sampler::keep_if(const Keeps& keeps) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!keeps(i)) continue;
    ids_[kept] = ids_[i];
    scores_[kept] = scores_[i];
    weights_[kept] = weights_[i];
    ++kept;
  }
  count_ = kept;
}

void Sampler::keep_top_k(std::size_t k) {
  if (k >= count_) return;
  const auto kth_largest = [&](std::span<const float> values) {
    std::ranges::copy(values, selection_.begin());
    const auto place = selection_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(selection_.begin(), place,
                     selection_.begin() + static_cast<std::ptrdiff_t>(values.size()), std::greater{});
    return *place;
  };
  // k blocks have a score that is at least the kth largest of the blocks' largest scores. So blocks with
  // less, most of them, have none of the k largest scores.
  const std::size_t blocks = count_ / block_scores;
  if (k <= blocks) {
    for (std::size_t block = 0; block < blocks; ++block)
      block_tops_[block] = largest_of(std::span(scores_).subspan(block * block_scores, block_scores));
    const float bound = kth_largest(std::span(block_tops_).first(blocks));
    std::size_t kept = 0;
    const auto take = [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        if (scores_[i] < bound) continue;
        ids_[kept] = ids_[i];
        scores_[kept++] = scores_[i];
      }
    };
    for (std::size_t block = 0; block < blocks; ++block)
      if (block_tops_[block] >= bound) take(block * block_scores, (block + 1) * block_scores);
    take(blocks * block_scores, count_);
    count_ = kept;
  }
  const float bound = kth_largest(std::span(scores_).first(count_));
  keep_if([&](std::size_t i) { return scores_[i] >= bound; });
}

void Sampler::keep_top_p(double total) {
  // A token is dropped if it and all less likely ones together have at most the weight `dropped`.
  const double dropped = (1.0 - sampling_.top_p) * total;
  // Even all tokens with less than the mean of that would not have more, so the rest need not be looked at.
  const double mean = dropped / static_cast<double>(count_);
  std::size_t looked_at = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    order_[looked_at] = static_cast<std::uint32_t>(i);
    looked_at += weights_[i] >= mean ? 1 : 0;
  }
  const auto is_better = [&](std::uint32_t a, std::uint32_t b) {
    return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
  };
  // Bisection: the best half is put first; the boundary is in it or behind it.
  auto first = order_.begin();
  auto last = first + static_cast<std::ptrdiff_t>(looked_at);
  double better = 0.0;  // weight of the tokens before `first`
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, is_better);
    double with_half = better;
    for (auto i = first; i != middle; ++i) with_half += weights_[*i];
    if (total - with_half > dropped) {
      better = with_half;
      first = middle;
    } else {
      last = middle;
    }
  }
  const std::uint32_t worst = *first;
  const float bound = scores_[worst];
  keep_if([&](std::size_t i) { return scores_[i] > bound || (scores_[i] == bound && i <= worst); });
}

}  // namespace mylos
