// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule.hpp"

#include <gtest/gtest.h>

namespace mylos {
namespace {

TEST(Schedule, AccumulatesInOneSlot) {
  const Schedule schedule = accumulate(3);
  ASSERT_EQ(schedule.repeat.size(), 8U);
  for (int m = 0; m < 3; ++m) {
    const auto at = 2 * static_cast<std::size_t>(m);
    EXPECT_EQ(schedule.repeat[at].kind, ActionKind::forward);
    EXPECT_EQ(schedule.repeat[at].micro_batch, m);
    EXPECT_EQ(schedule.repeat[at + 1].kind, ActionKind::backward);
    EXPECT_EQ(schedule.repeat[at + 1].micro_batch, m);
  }
  EXPECT_EQ(schedule.repeat[6].kind, ActionKind::reduce);
  EXPECT_EQ(schedule.repeat[7].kind, ActionKind::step);
  EXPECT_EQ(schedule.slots(), (std::vector<int>{0, 0, 0}));
}

TEST(Schedule, GivesASlotToEachMicroBatchInFlight) {
  using enum ActionKind;
  Schedule schedule;
  schedule.micro_batches = 4;
  // One forward, one backward with two in flight.
  schedule.repeat = {{forward, 0}, {forward, 1},  {backward, 0}, {forward, 2}, {backward, 1},
                     {forward, 3}, {backward, 2}, {backward, 3}, {reduce, 3},  {step, 3}};
  EXPECT_EQ(schedule.slots(), (std::vector<int>{0, 1, 0, 1}));
  // All forward, then all backward.
  schedule.repeat = {{forward, 0},  {forward, 1},  {forward, 2},  {forward, 3}, {backward, 3},
                     {backward, 2}, {backward, 1}, {backward, 0}, {reduce, 0},  {step, 0}};
  EXPECT_EQ(schedule.slots(), (std::vector<int>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace mylos
