// SPDX-License-Identifier: BSD-3-Clause
// The clock on which plans are played: links, sides of events, overlap, and the host.
#include "parallel/schedule/logical_clock.hpp"

#include <deque>
#include <vector>

#include <gtest/gtest.h>

namespace mylos {
namespace {

using Kind = ClockItem::Kind;

/// Lists of items, one per lane.
class Lists final : public ClockSource {
 public:
  explicit Lists(std::vector<std::deque<ClockItem>> lanes) : lanes_(std::move(lanes)), ends(lanes_.size()) {}

  const ClockItem* next(std::size_t lane) override {
    return lanes_[lane].empty() ? nullptr : &lanes_[lane].front();
  }
  void done(std::size_t lane, const ClockItem& /*item*/, double /*begin*/, double end) override {
    ends[lane].push_back(end);
    lanes_[lane].pop_front();
  }

 private:
  std::vector<std::deque<ClockItem>> lanes_;

 public:
  std::vector<std::vector<double>> ends;  ///< of items, by lane
};

ClockItem work(double seconds, double host = 0.0) {
  return {.kind = Kind::work, .seconds = seconds, .host = host};
}
ClockItem post(int event) {
  return {.kind = Kind::post, .event = event};
}
ClockItem wait(int event) {
  return {.kind = Kind::wait, .event = event};
}

using Ends = std::vector<double>;

TEST(LogicalClock, EventsBeginWhenAllSidesArePosted) {
  LogicalClock clock(2, 1);
  const int event = clock.add({.sides = 2, .link = 0, .seconds = 3, .latency = 1});
  Lists lists({{work(2), post(event), work(1), wait(event)}, {work(5), post(event), wait(event)}});
  clock.play(lists);
  EXPECT_EQ(lists.ends[0], (Ends{2, 2, 3, 9}));
  EXPECT_EQ(lists.ends[1], (Ends{5, 5, 9}));
  EXPECT_FALSE(clock.is_stuck(0));
}

/// Work may await an event and post another: it begins after the wait.
TEST(LogicalClock, WorkAwaitsAndPosts) {
  LogicalClock clock(2, 0);
  const int first = clock.add({});
  const int second = clock.add({});
  Lists lists({{{.seconds = 2, .posts = first}, {.seconds = 1, .awaits = second}},
               {{.seconds = 5, .awaits = first, .posts = second}}});
  clock.play(lists);
  EXPECT_EQ(lists.ends[0], (Ends{2, 8}));
  EXPECT_EQ(lists.ends[1], (Ends{7}));
}

TEST(LogicalClock, EventsOfALinkFollowOneAnother) {
  LogicalClock clock(2, 1);
  const int first = clock.add({.link = 0, .seconds = 10});
  const int second = clock.add({.link = 0, .seconds = 1});
  const int other = clock.add({.seconds = 1});
  Lists lists({{post(first), post(second), post(other)}, {wait(other), wait(second)}});
  clock.play(lists);
  EXPECT_EQ(lists.ends[1], (Ends{1, 11}));
}

TEST(LogicalClock, ALaneThatWaitsForNothingIsStuck) {
  LogicalClock clock(2, 0);
  const int event = clock.add({.sides = 2});
  Lists lists({{post(event), wait(event), work(1)}, {work(1)}});
  clock.play(lists);
  EXPECT_TRUE(clock.is_stuck(0));
  EXPECT_FALSE(clock.is_stuck(1));
}

/// 6 s of communication beside 10 s of work: the first 6 · 1.5 s pass with both, in which 9 / 2 s of work are
/// done; the rest of the work is alone.
TEST(LogicalClock, WorkAndTheLanesOwnEventsSlowEachOther) {
  LogicalClock clock(1, 0, {.computation = 2, .communication = 1.5});
  const int event = clock.add({.sides = 0, .seconds = 6});
  Lists lists({{post(event), work(10), wait(event)}});
  clock.play(lists);
  EXPECT_DOUBLE_EQ(lists.ends[0][1], 9 + (10 - 4.5));
  EXPECT_DOUBLE_EQ(lists.ends[0][2], lists.ends[0][1]);
}

/// What is left after the work runs at its own speed.
TEST(LogicalClock, EventsOutliveTheWork) {
  LogicalClock clock(1, 0, {.computation = 2, .communication = 1.5});
  const int event = clock.add({.sides = 0, .seconds = 6, .latency = 1});
  const int queued = clock.add({.sides = 0, .seconds = 1});
  const int elsewhere = clock.add({.sides = 0, .link = 1, .seconds = 4});
  Lists lists(
      {{post(event), post(queued), post(elsewhere), work(3), wait(elsewhere), wait(event), wait(queued)}});
  clock.play(lists);
  EXPECT_DOUBLE_EQ(lists.ends[0][3], 6);  // slower by 2
  EXPECT_DOUBLE_EQ(lists.ends[0][4], 6);  // 6 / 1.5 s done
  EXPECT_DOUBLE_EQ(lists.ends[0][5], 9);  // 2 s more, and the latency
  EXPECT_DOUBLE_EQ(lists.ends[0][6], 9);
}

TEST(LogicalClock, TheHostQueuesAhead) {
  LogicalClock clock(1, 0);
  Lists lists({{work(5, 1), work(1, 1), work(1, 10), work(1, 0)}});
  clock.play(lists);
  EXPECT_EQ(lists.ends[0], (Ends{6, 7, 13, 14}));
}

TEST(LogicalClock, GoesOnWithMoreItems) {
  LogicalClock clock(1, 0);
  Lists first({{work(2)}});
  clock.play(first);
  Lists second({{work(3)}});
  clock.play(second);
  EXPECT_EQ(clock.now(0), 5);
}

}  // namespace
}  // namespace mylos
