// SPDX-License-Identifier: BSD-3-Clause
// Quantiles of samples in any order.
#include "core/base/statistics.hpp"

#include <gtest/gtest.h>

namespace mylos {
namespace {

TEST(Statistics, TheMedianIsTheMiddleSampleOrBetweenTheTwo) {
  EXPECT_EQ(median({7.0}), 7.0);
  EXPECT_EQ(median({5.0, 1.0, 9.0}), 5.0);
  EXPECT_EQ(median({8.0, 1.0, 2.0, 4.0}), 3.0);
  EXPECT_EQ(median({3.0, 3.0, 3.0, 3.0}), 3.0);
}

TEST(Statistics, QuantilesInterpolateBetweenNeighbours) {
  const std::vector<double> samples = {40.0, 10.0, 30.0, 20.0, 50.0};
  EXPECT_EQ(quantile(samples, 0.0), 10.0);
  EXPECT_EQ(quantile(samples, 0.25), 20.0);
  EXPECT_DOUBLE_EQ(quantile(samples, 0.9), 46.0);
  EXPECT_EQ(quantile(samples, 1.0), 50.0);
}

TEST(Statistics, RefusesEmptySamplesAndInvalidFractions) {
  EXPECT_THROW(quantile({}, 0.5), Error);
  EXPECT_THROW(quantile({1.0}, 1.5), Error);
}

}  // namespace
}  // namespace mylos
