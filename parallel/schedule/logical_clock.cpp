// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/logical_clock.hpp"

#include <algorithm>
#include <utility>

namespace mylos {

LogicalClock::LogicalClock(std::size_t lanes, std::size_t links, ClockSlowdown slowdown)
    : slowdown_(slowdown), link_free_(links), lanes_(lanes) {}

int LogicalClock::add(const ClockEvent& event) {
  events_.push_back({.plan = event});
  return static_cast<int>(events_.size()) - 1;
}

void LogicalClock::wake(std::size_t lane) {
  if (lanes_[lane].is_awake) return;
  lanes_[lane].is_awake = true;
  awake_.push_back(lane);
}

void LogicalClock::play(ClockSource& source) {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) wake(lane);
  while (!awake_.empty()) {
    const std::size_t lane = awake_.back();
    awake_.pop_back();
    lanes_[lane].is_awake = false;
    play(lane, source);
  }
}

void LogicalClock::play(std::size_t lane, ClockSource& source) {
  while (true) {
    if (lanes_[lane].item == nullptr) {
      lanes_[lane].item = source.next(lane);
      if (lanes_[lane].item == nullptr) return;
      lanes_[lane].host += lanes_[lane].item->host;
      idle_until(lanes_[lane], lanes_[lane].host);
      lanes_[lane].begin = lanes_[lane].now;
    }
    const ClockItem& item = *lanes_[lane].item;
    if (!advance(lane, item)) return;
    lanes_[lane].item = nullptr;
    source.done(lane, item, lanes_[lane].begin, lanes_[lane].now);
  }
}

double LogicalClock::pass(Lane& lane, double most, double slower) {
  double seconds = most;
  Running* first = nullptr;
  for (std::vector<Running>& link : lane.running) {
    if (link.empty() || link.front().left * slower > seconds) continue;
    seconds = link.front().left * slower;
    first = &link.front();
  }
  for (std::vector<Running>& link : lane.running) {
    if (!link.empty()) link.front().left = std::max(0.0, link.front().left - seconds / slower);
  }
  if (first != nullptr) first->left = 0.0;
  lane.now += seconds;
  for (std::vector<Running>& link : lane.running) {
    if (link.empty() || link.front().left > 0.0) continue;
    Event& event = events_[static_cast<std::size_t>(link.front().event)];
    finish(event, lane.now + event.plan.latency);
    link.erase(link.begin());
  }
  return seconds;
}

void LogicalClock::idle_until(Lane& lane, double time) {
  while (lane.now < time) {
    const double left = time - lane.now;
    if (pass(lane, left, 1.0) == left) lane.now = time;
  }
}

bool LogicalClock::advance(std::size_t number, const ClockItem& item) {
  Lane& lane = lanes_[number];
  const auto is_communicating = [&] {
    return std::ranges::any_of(lane.running, [](const auto& link) { return !link.empty(); });
  };
  switch (item.kind) {
    case ClockItem::Kind::work:
      if (item.awaits >= 0) {
        if (!wait_for(number, item.awaits)) return false;
        lane.begin = lane.now;
      }
      for (double left = item.seconds; left > 0.0;) {
        if (!is_communicating()) {
          lane.now += left;
          break;
        }
        const double all = left * slowdown_.computation;
        const double passed = pass(lane, all, slowdown_.communication);
        left = passed == all ? 0.0 : left - passed / slowdown_.computation;
      }
      if (item.posts >= 0) post(number, item.posts);
      return true;
    case ClockItem::Kind::post:
      post(number, item.event);
      return true;
    case ClockItem::Kind::wait:
      break;
  }
  return wait_for(number, item.event);
}

bool LogicalClock::wait_for(std::size_t number, int event_number) {
  Lane& lane = lanes_[number];
  const auto event = static_cast<std::size_t>(event_number);
  while (events_[event].plan.sides == 0 && events_[event].posted > 0 && events_[event].end == never &&
         std::ranges::any_of(lane.running, [](const auto& link) { return !link.empty(); }))
    pass(lane, 1e30, 1.0);
  if (events_[event].end == never) {
    lane.next_waiting = std::exchange(events_[event].waiting, static_cast<int>(number));
    return false;
  }
  if (lane.running.empty()) {
    lane.now = std::max(lane.now, events_[event].end);
  } else {
    idle_until(lane, events_[event].end);
  }
  return true;
}

void LogicalClock::post(std::size_t number, int event_number) {
  Lane& lane = lanes_[number];
  Event& event = events_[static_cast<std::size_t>(event_number)];
  ++event.posted;
  if (event.plan.sides == 0) {
    const auto link = static_cast<std::size_t>(std::max(event.plan.link, 0));
    if (link >= lane.running.size()) lane.running.resize(link + 1);
    lane.running[link].push_back({.event = event_number, .left = event.plan.seconds});
    return;
  }
  event.begin = std::max(event.begin, lane.now);
  if (event.posted != event.plan.sides) return;
  double end = event.begin + event.plan.seconds;
  if (event.plan.link >= 0) {
    double& free = link_free_[static_cast<std::size_t>(event.plan.link)];
    end = free = std::max(free, event.begin) + event.plan.seconds;
  }
  finish(event, end + event.plan.latency);
}

void LogicalClock::finish(Event& event, double end) {
  event.end = end;
  for (int lane = std::exchange(event.waiting, -1); lane >= 0;) {
    const auto number = static_cast<std::size_t>(lane);
    lane = std::exchange(lanes_[number].next_waiting, -1);
    wake(number);
  }
}

}  // namespace mylos
