// SPDX-License-Identifier: BSD-3-Clause
// Every prefix of the samples contains each source's share, to within one sample.
#include "io/tokens/interleaving.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace mylos {
namespace {

using Weights = std::vector<std::int64_t>;

/// Checks the shares in the first `samples` samples, over any number of periods.
void expect_shares(const Weights& weights, std::int64_t samples) {
  SCOPED_TRACE(testing::PrintToString(weights));
  const Interleaving order(weights);
  const auto sum = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  Weights seen(weights.size());
  for (std::int64_t n = 0; n < samples; ++n) {
    const Interleaving::Place place = order.at(n);
    ASSERT_LT(place.source, weights.size());
    ASSERT_EQ(place.index, seen[place.source]) << n;
    ++seen[place.source];
    for (std::size_t s = 0; s < weights.size(); ++s) {
      ASSERT_EQ(order.count(s, n + 1), seen[s]) << n;
      ASSERT_LT(std::abs(sum * seen[s] - (n + 1) * weights[s]), sum) << n << " of " << s;
    }
  }
}

TEST(Interleaving, OfOneSourceIsItsOrder) {
  const Interleaving order(Weights{1});
  for (const std::int64_t i : {0L, 1L, 12345678901234L}) {
    EXPECT_EQ(order.at(i).source, 0U);
    EXPECT_EQ(order.at(i).index, i);
    EXPECT_EQ(order.count(0, i), i);
  }
}

TEST(Interleaving, HasEachSourcesShareInEveryPrefix) {
  for (const Weights& weights : {Weights{7, 3}, Weights{1, 1, 1}, Weights{1, 99}, Weights{100, 101, 1},
                                 Weights{5, 1, 1, 1, 1, 1}, Weights{50, 30, 19, 1}})
    expect_shares(weights, 1000);
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    Weights weights(std::uniform_int_distribution<std::size_t>(2, 12)(random));
    for (std::int64_t& weight : weights)
      weight = std::int64_t{1} << std::uniform_int_distribution<int>(0, 6)(random);
    for (std::int64_t& weight : weights)
      weight = std::uniform_int_distribution<std::int64_t>(1, weight)(random);
    expect_shares(weights, 2 * std::accumulate(weights.begin(), weights.end(), std::int64_t{0}));
  }
}

TEST(Interleaving, CountsFarAway) {
  const Interleaving order(Weights{99999, 1});
  EXPECT_EQ(order.count(1, 100000LL * 1000000), 1000000);
  EXPECT_EQ(order.count(0, 100000LL * 1000000 + 1) + order.count(1, 100000LL * 1000000 + 1),
            100000LL * 1000000 + 1);
}

}  // namespace
}  // namespace mylos
