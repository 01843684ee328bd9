// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/wall_clock_limit.hpp"

#include <cmath>
#include <utility>

#include <gtest/gtest.h>

#include "app/deck/run_config.hpp"

namespace mylos {
namespace {

constexpr double limit = 1000.0;  // seconds

TEST(WallClockLimit, GuessesACheckpointUntilOneWasTimed) {
  // The guess for 10⁸ parameters is 12 s plus 1 s.
  WallClockLimit run(limit, 100'000'000, 1);
  EXPECT_FALSE(run.is_near(limit - 2 * 13.0 - 1.0));
  EXPECT_TRUE(run.is_near(limit - 2 * 13.0 - 0.9));
  run.note_checkpoint(3.0);
  EXPECT_FALSE(run.is_near(limit - 2 * 3.0 - 1.0));
  EXPECT_TRUE(run.is_near(limit - 2 * 3.0 - 0.9));
}

TEST(WallClockLimit, AssumesTheSlowestStepAndCheckpoint) {
  WallClockLimit run(limit, 0, 2);
  for (const double seconds : {1.0, 4.0, 2.0}) {
    run.note_step(seconds);
    run.note_checkpoint(2 * seconds);
  }
  // Twice the time of two steps and a checkpoint, plus a second.
  const double needed = 2 * (2 * 4.0 + 8.0) + 1.0;
  EXPECT_FALSE(run.is_near(limit - needed));
  EXPECT_TRUE(run.is_near(limit - needed + 0.1));
}

TEST(WallClockLimit, LeavesTimeToReadTheCheckpointBack) {
  for (const auto& [stall, write] : {std::pair(2.0, 5.0), std::pair(5.0, 2.0)}) {
    WallClockLimit run(limit, 0, 1);
    run.note_checkpoint(stall, write, 3.0);
    EXPECT_FALSE(run.is_near(limit - 2 * 8.0 - 1.0));
    EXPECT_TRUE(run.is_near(limit - 2 * 8.0 - 0.9));
  }
}

/// The time that a checkpoint has taken so far says only how long it takes at least.
TEST(WallClockLimit, KeepsItsGuessWhileTheFirstCheckpointIsUnderWay) {
  WallClockLimit run(limit, 100'000'000, 1);  // the guess is 13 s
  run.note_unfinished_checkpoint(2.0);
  EXPECT_TRUE(run.is_near(limit - 2 * 13.0 - 0.9));
  run.note_unfinished_checkpoint(20.0);
  EXPECT_TRUE(run.is_near(limit - 2 * 20.0 - 0.9));
  EXPECT_FALSE(run.is_near(limit - 2 * 20.0 - 1.0));
  WallClockLimit other(limit, 100'000'000, 1);
  other.note_unfinished_checkpoint(2.0);
  other.note_checkpoint(3.0);
  EXPECT_FALSE(other.is_near(limit - 2 * 3.0 - 1.0));
}

TEST(WallClockLimit, MayBeInfinite) {
  EXPECT_FALSE(WallClockLimit(INFINITY, 100'000'000, 1).is_near(1e9));
}

TEST(WallClockLimit, IsTheEarlierOfTwo) {
  constexpr double launch = 1000.0;
  LimitsConfig limits;
  EXPECT_EQ(limits.seconds(launch), INFINITY);
  EXPECT_FALSE(limits.ends_with_job(launch));
  limits.end_time = 5000;
  limits.end_margin = 30.0;
  EXPECT_EQ(limits.seconds(launch), 3970.0);
  limits.wall_clock = 4000.0;
  EXPECT_EQ(limits.seconds(launch), 3970.0);
  EXPECT_TRUE(limits.ends_with_job(launch));
  limits.wall_clock = 3000.0;
  EXPECT_EQ(limits.seconds(launch), 3000.0);
  EXPECT_FALSE(limits.ends_with_job(launch));
}

}  // namespace
}  // namespace mylos
