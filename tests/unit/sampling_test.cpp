// SPDX-License-Identifier: BSD-3-Clause
// Sampler: its filters against transformers' (tests/reference/make_sampling_reference.py) and, for larger
// vocabularies, against a plain sort; the distribution of draws, and what they depend on.
#include "app/inference/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"

namespace mylos {
namespace {

using testing::HasSubstr;

constexpr std::int64_t reference_vocab = 30;

std::vector<float> floats_of(const Json& reference, std::string_view list, std::size_t row) {
  std::vector<float> values;
  const Json wrapped = Json::object({{"row", reference.elements(list)[row]}});
  for (const Json& value : wrapped.elements("row")) values.push_back(std::stof(value.dump()));
  return values;
}

/// A drawn-from token: id, and probability relative to the most likely one.
struct Weighted {
  std::int32_t id;
  float weight;
};

std::vector<Weighted> copy_of(const Sampler::Candidates& candidates) {
  std::vector<Weighted> copy;
  for (std::size_t i = 0; i < candidates.ids.size(); ++i)
    copy.push_back({candidates.ids[i], candidates.weights[i]});
  return copy;
}

class SamplingReference : public testing::Test {
 protected:
  static Json read() {
    return Json::parse(
        read_text_file(std::string(std::getenv("MYLOS_SOURCE")) + "/tests/reference/sampling.json"));
  }
  static std::vector<std::int32_t> seen(const Json& reference) {
    const std::vector<std::int64_t> ids = reference.integers("seen");
    return {ids.begin(), ids.end()};
  }

  Json reference_ = read();
  std::vector<std::int32_t> seen_ = seen(reference_);
};

TEST_F(SamplingReference, KeepsTheTokensOfTransformers) {
  for (const Json& entry : reference_.elements("cases")) {
    SCOPED_TRACE(entry.dump());
    const auto real = [&](const char* key) { return entry.has(key) ? entry.real(key) : 1.0; };
    const Sampling sampling{.temperature = real("temperature"),
                            .top_k = entry.has("top_k") ? entry.integer("top_k") : 0,
                            .top_p = real("top_p"),
                            .repetition_penalty = real("repetition_penalty")};
    Sampler sampler(sampling, reference_vocab,
                    entry.has("allowed") ? entry.integer("allowed") : reference_vocab);
    const auto row = static_cast<std::size_t>(entry.integer("logits"));
    const auto kept = copy_of(sampler.candidates(floats_of(reference_, "logits", row), seen_));

    std::map<std::int32_t, float> scores;
    std::int32_t next = 0;
    for (const Json& score : entry.elements("scores")) {
      if (score.dump() != "null") scores[next] = std::stof(score.dump());
      ++next;
    }
    float top = -std::numeric_limits<float>::infinity();
    float least = -top;
    for (const auto& [id, score] : scores) {
      top = std::max(top, score);
      least = std::min(least, score);
    }
    ASSERT_EQ(kept.size(), scores.size());
    for (const Weighted& token : kept) {
      // Which of several least likely ones stay is not defined in transformers.
      const float score = scores.contains(token.id) ? scores[token.id] : least;
      EXPECT_NEAR(token.weight, std::exp(double{score} - top), 3e-7) << token.id;
    }
  }
}

TEST_F(SamplingReference, ReportsTheProbabilityOfTheModelItself) {
  for (std::size_t row = 0; row < reference_.elements("logits").size(); ++row) {
    const std::vector<float> logits = floats_of(reference_, "logits", row);
    const std::vector<float> logprobs = floats_of(reference_, "logprobs", row);
    Sampler plain({}, reference_vocab, reference_vocab);
    Sampler filtered({.temperature = 2.0, .top_k = 4, .top_p = 0.9, .repetition_penalty = 1.5},
                     reference_vocab, 20);
    for (std::uint32_t position = 0; position < 20; ++position) {
      for (Sampler* sampler : {&plain, &filtered}) {
        const DrawnToken token = sampler->sample(logits, seen_, {.position = position});
        EXPECT_NEAR(token.logprob, logprobs[static_cast<std::size_t>(token.id)], 1e-6);
      }
    }
  }
}

/// Normal numbers, in steps of 1 / `steps`, so that some are equal.
std::vector<float> random_logits(std::size_t count, float steps, std::uint64_t seed) {
  std::vector<float> logits(count);
  for (std::size_t i = 0; i < count; ++i) {
    const PhiloxBlock random = philox(stream_key(seed, "logits"), static_cast<std::uint32_t>(i), 0, 0, 0);
    logits[i] = std::round(normal_pair(random.x[0], random.x[1])[0] * 3.0F * steps) / steps;
  }
  return logits;
}

/// The ids that top-k and then top-p keep, by sorting everything.
std::vector<std::int32_t> kept_by_sorting(const std::vector<float>& logits, std::int64_t top_k,
                                          double top_p) {
  const auto logit = [&](std::int32_t id) { return double{logits[static_cast<std::size_t>(id)]}; };
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, std::greater{}, logit);
  const double largest = logit(ids.front());
  if (top_k > 0 && top_k < std::ssize(ids)) {
    const double bound = logit(ids[static_cast<std::size_t>(top_k - 1)]);
    std::erase_if(ids, [&](std::int32_t id) { return logit(id) < bound; });
  }
  double total = 0.0;
  for (const std::int32_t id : ids) total += std::exp(logit(id) - largest);
  double better = 0.0;
  std::size_t kept = 0;
  while (kept < ids.size() && (kept == 0 || total - better > (1.0 - top_p) * total))
    better += std::exp(logit(ids[kept++]) - largest);
  ids.resize(kept);
  std::ranges::sort(ids);
  return ids;
}

TEST(Sampling, LargeVocabulariesAreFilteredLikeSmallOnes) {
  constexpr std::size_t size = 3017;  // 94 blocks and a rest
  for (const float steps : {1.0F, 20.0F, 10000.0F}) {
    const std::vector<float> logits = random_logits(size, steps, 5);
    for (const std::int64_t top_k : {0, 1, 2, 40, 94, 95, 1000, 3016, 3017, 4000}) {
      for (const double top_p : {1.0, 0.999, 0.9, 0.3, 0.001, 0.0}) {
        Sampler sampler({.top_k = top_k, .top_p = top_p}, size, size);
        const Sampler::Candidates kept = sampler.candidates(logits, {});
        const auto expected = kept_by_sorting(logits, top_k, top_p);
        EXPECT_TRUE(std::ranges::equal(kept.ids, expected))
            << steps << " " << top_k << " " << top_p << ": " << kept.ids.size() << " not " << expected.size();
      }
    }
  }
}

TEST(Sampling, TopPDropsTokensWithExactlyTheRest) {
  const std::vector<float> logits(4, 1.0F);
  for (const auto& [top_p, kept] : {std::pair(0.25, 1), {0.5, 2}, {0.51, 3}, {0.75, 3}, {0.76, 4}}) {
    Sampler sampler({.top_p = top_p}, 4, 4);
    EXPECT_EQ(std::ssize(sampler.candidates(logits, {}).ids), kept) << top_p;
  }
}

TEST(Sampling, GreedyTakesTheLowestIdOfEqualLogits) {
  std::vector<float> logits(100, 1.0F);
  logits[37] = logits[61] = logits[95] = 2.0F;
  Sampler greedy({.temperature = 0.0, .top_k = 1, .top_p = 0.1}, 100, 100);
  EXPECT_EQ(greedy.sample(logits, {}, {}).id, 37);
  // The penalty makes the logits of seen tokens 1, and doubles what is negative.
  Sampler penalised({.temperature = 0.0, .repetition_penalty = 2.0}, 100, 100);
  const std::vector<std::int32_t> seen = {61, 37, 37};
  EXPECT_EQ(penalised.sample(logits, seen, {}).id, 95);
  std::vector<float> negative(100, -4.0F);
  negative[50] = -3.0F;
  negative[51] = -3.5F;
  EXPECT_EQ(penalised.sample(negative, {}, {}).id, 50);
  EXPECT_EQ(penalised.sample(negative, std::vector<std::int32_t>{50}, {}).id, 51);
}

TEST(Sampling, IdsThatTheTokenizerLacksAreNeverDrawn) {
  std::vector<float> logits(64, 0.0F);
  logits[60] = logits[61] = 200.0F;  // far above all others, whose exponentials vanish
  logits[8] = 1.0F;
  const std::vector<std::int32_t> seen = {60, 63};
  for (const Sampling& sampling :
       {Sampling{.temperature = 0.0}, Sampling{.top_k = 1}, Sampling{.top_p = 0.001},
        Sampling{.temperature = 0.0, .repetition_penalty = 1.1}}) {
    Sampler sampler(sampling, 64, 57);
    const DrawnToken token = sampler.sample(logits, seen, {});
    EXPECT_EQ(token.id, 8);
    EXPECT_NEAR(token.logprob, 1.0 - 200.0 - std::log(2.0), 2e-5);
  }
  Sampler all({.temperature = 50.0}, 64, 57);
  for (std::uint32_t position = 0; position < 2000; ++position)
    EXPECT_LT(all.sample(logits, seen, {.position = position}).id, 57);
}

/// Pearson's statistic of the counts of ids, whose expectations are in proportion to `weights`.
double chi_square(const std::vector<int>& counts, const std::vector<double>& weights) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * weights[i] / total;
    if (expected > 0.0) {
      sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    } else {
      EXPECT_EQ(counts[i], 0);
    }
  }
  return sum;
}

TEST(Sampling, DrawsHaveTheirProbabilities) {
  constexpr std::uint32_t draws = 40000;
  const std::vector<float> logits = {0.5F, -1.0F, 2.0F, 0.0F, 1.5F, -3.0F};
  const std::vector<double> plain = {std::exp(0.5), std::exp(-1.0), std::exp(2.0),
                                     1.0,           std::exp(1.5),  std::exp(-3.0)};
  const std::vector<double> filtered = {std::exp(0.25), 0.0, std::exp(1.0), 1.0, std::exp(0.75), 0.0};
  // Each of the three numbers of the place is counted through; the statistic of at most 5 degrees of freedom
  // exceeds 20.5 with a probability of 0.001.
  const std::vector<DrawPlace> steps = {{.position = 1}, {.sample = 1}, {.prompt = 1}};
  for (const DrawPlace& step : steps) {
    std::vector<int> counts(6), filtered_counts(6);
    Sampler sampler({.seed = 7}, 6, 6);
    Sampler filtering({.temperature = 2.0, .top_k = 4, .seed = 8}, 6, 6);
    for (std::uint32_t i = 0; i < draws; ++i) {
      const DrawPlace place = {i * step.prompt, i * step.sample, i * step.position};
      ++counts[static_cast<std::size_t>(sampler.sample(logits, {}, place).id)];
      ++filtered_counts[static_cast<std::size_t>(filtering.sample(logits, {}, place).id)];
    }
    EXPECT_LT(chi_square(counts, plain), 20.5);
    EXPECT_LT(chi_square(filtered_counts, filtered), 20.5);
  }
}

TEST(Sampling, ADrawDependsOnlyOnSeedAndPlace) {
  const std::vector<float> logits(1000, 0.0F);  // so that two draws hardly agree by chance
  const std::vector<float> others = random_logits(1000, 100.0F, 1);
  std::vector<DrawPlace> places;
  for (const std::uint32_t prompt : {0U, 1U, 70000U})
    for (const std::uint32_t sample : {0U, 1U, 9U})
      for (const std::uint32_t position : {0U, 1U, 100000U}) places.push_back({prompt, sample, position});
  Sampler sampler({.seed = 3}, 1000, 1000);
  std::vector<std::int32_t> ids;
  for (const DrawPlace& place : places) ids.push_back(sampler.sample(logits, {}, place).id);

  Sampler again({.seed = 3}, 1000, 1000);
  for (std::size_t i = places.size(); i-- > 0;) {
    again.sample(others, {}, {.position = static_cast<std::uint32_t>(i)});
    EXPECT_EQ(again.sample(logits, {}, places[i]).id, ids[i]);
  }
  std::vector<std::int32_t> other_seed;
  Sampler other({.seed = 4}, 1000, 1000);
  for (const DrawPlace& place : places) other_seed.push_back(other.sample(logits, {}, place).id);
  const auto same = std::inner_product(ids.begin(), ids.end(), other_seed.begin(), 0, std::plus{},
                                       [](std::int32_t a, std::int32_t b) { return a == b ? 1 : 0; });
  EXPECT_LE(same, 1);
  std::ranges::sort(ids);
  EXPECT_GE(std::ranges::unique(ids).begin() - ids.begin(), 25) << "of 27 places";
}

std::string sampling_error(const Sampling& sampling, ExitCode code, const std::vector<float>& logits) {
  try {
    Sampler sampler(sampling, std::ssize(logits), std::ssize(logits) - 1);
    sampler.sample(logits, std::vector<std::int32_t>{0}, {.prompt = 4, .sample = 1, .position = 2});
    return "good";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
}

TEST(Sampling, RefusesLogitsThatAreNotFinite) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf("")}) {
    for (const std::size_t at : {0, 17, 39}) {  // 39 is not drawn, but counts in the probability of others
      std::vector<float> logits(40, 1.0F);
      logits[at] = bad;
      EXPECT_EQ(sampling_error({}, ExitCode::numerical, logits),
                "the model's logits of token 3 are not finite (prompt 4, sample 1)");
    }
  }
  const std::vector<float> large(40, 1e30F);
  EXPECT_EQ(sampling_error({.temperature = 1e-20}, ExitCode::numerical, large),
            "the logits overflow at temperature 1e-20 and repetition penalty 1");
  EXPECT_EQ(sampling_error({.repetition_penalty = 1e-20}, ExitCode::numerical, large),
            "the logits overflow at temperature 1 and repetition penalty 1e-20");
  EXPECT_EQ(sampling_error({}, ExitCode::numerical, large), "good");
  EXPECT_EQ(sampling_error({}, ExitCode::numerical, {3e38F, -3e38F, -3e38F}), "good");
}

TEST(Sampling, RefusesOptionsWithoutMeaning) {
  const auto error = [](const Sampling& sampling) {
    return sampling_error(sampling, ExitCode::usage, {1.0F, 2.0F});
  };
  const double nan = std::nan("");
  EXPECT_EQ(error({.temperature = -1.0}),
            "--temperature=-1 is not 0 or a positive number between 1e-30 and 1e30");
  EXPECT_THAT(error({.temperature = nan}), HasSubstr("--temperature=nan is not"));
  EXPECT_THAT(error({.temperature = 1e-40}), HasSubstr("--temperature=1e-40 is not"));
  EXPECT_EQ(error({.top_k = -1}), "--top-k=-1 is not 0 or a positive number");
  EXPECT_EQ(error({.top_p = 1.5}), "--top-p=1.5 is not between 0 and 1");
  EXPECT_EQ(error({.top_p = nan}), "--top-p=nan is not between 0 and 1");
  EXPECT_EQ(error({.repetition_penalty = 0.0}),
            "--repetition-penalty=0 is not a positive number between 1e-30 and 1e30");
}

}  // namespace
}  // namespace mylos
