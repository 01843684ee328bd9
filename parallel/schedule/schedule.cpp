// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule.hpp"

#include <algorithm>

namespace mylos {

int Schedule::ahead() const {
  int most = 0;
  for (const Action& action : actions) most = std::max(most, action.ahead);
  return most;
}

bool Schedule::is_last(std::size_t index) const {
  const Action& action = actions[index];
  const auto place = actions.begin() + static_cast<std::ptrdiff_t>(index);
  const auto is_same = [&](const Action& other) {
    return other.kind == action.kind && other.chunk == action.chunk;
  };
  const auto follows = [&](const Action& other) { return is_same(other) && other.ahead <= action.ahead; };
  const auto is_of_later_period = [&](const Action& other) {
    return is_same(other) && other.ahead < action.ahead;
  };
  return std::none_of(place + 1, actions.end(), follows) &&
         std::none_of(actions.begin(), place, is_of_later_period);
}

bool Schedule::has(ActionKind kind) const {
  return std::ranges::find(actions, kind, &Action::kind) != actions.end();
}

std::set<int> Schedule::held_chunks() const {
  std::set<int> held;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::forward) held.insert(action.chunk);
  }
  return held;
}

ScheduleExcerpt excerpt_of(const Schedule& schedule) {
  // The third micro-batch is like all later ones except the last. Two micro-batches follow it, because work
  // that it begins for the fourth, such as gathers of weights, ends while the fourth begins the same work for
  // the fifth.
  constexpr int before = 2;
  constexpr int after = 2;
  const std::vector<Action>& all = schedule.actions;
  const int most = before + 1 + after;
  const auto is_of_first = [](const Action& action) {
    return is_of_micro_batch(action.kind) && action.micro_batch == 0;
  };
  const auto period = static_cast<std::size_t>(std::ranges::count_if(all, is_of_first));
  const std::size_t num_repeated = period * static_cast<std::size_t>(schedule.micro_batches);
  const auto expected = [&](std::size_t index) {
    Action action = all[index % period];
    action.micro_batch = static_cast<int>(index / period);
    return action;
  };
  bool is_periodic = schedule.micro_batches > most && num_repeated <= all.size();
  for (std::size_t i = 0; is_periodic && i < num_repeated; ++i) is_periodic = all[i] == expected(i);
  if (!is_periodic) return {.schedule = schedule, .actions = {}};

  ScheduleExcerpt excerpt{.schedule = schedule,
                          .actions = {.begin = before * period,
                                      .end = (before + 1) * period,
                                      .times = static_cast<std::size_t>(schedule.micro_batches - most) + 1}};
  std::vector<Action>& few = excerpt.schedule.actions;
  excerpt.schedule.micro_batches = most;
  few.erase(few.begin() + static_cast<std::ptrdiff_t>(most * period),
            few.begin() + static_cast<std::ptrdiff_t>(num_repeated));
  return excerpt;
}

SlotAssignment::SlotAssignment(const Schedule& schedule)
    : schedule_(schedule), num_actions_(static_cast<std::size_t>(schedule.micro_batches)) {
  for (const Action& action : schedule.actions) {
    if (is_of_micro_batch(action.kind)) ++num_actions_[static_cast<std::size_t>(action.micro_batch)];
  }
}

int SlotAssignment::of(const Occurrence& occurrence) {
  const Action& action = schedule_.actions[occurrence.index];
  const auto slot_where = [&](const auto& holds) {
    return static_cast<int>(std::ranges::find_if(holders_, holds) - holders_.begin());
  };
  int slot = slot_where([&](const Holder& holder) {
    return holder.step == occurrence.step && holder.micro_batch == action.micro_batch;
  });
  is_new_ = slot == num_slots();
  if (!is_new_) return slot;
  slot = slot_where([](const Holder& holder) { return holder.step < 0; });
  if (slot == num_slots()) holders_.emplace_back();
  holders_[static_cast<std::size_t>(slot)] = {occurrence.step, action.micro_batch,
                                              num_actions_[static_cast<std::size_t>(action.micro_batch)]};
  return slot;
}

SlotAssignment::State SlotAssignment::state(std::int64_t step) const {
  State state;
  for (const Holder& holder : holders_) {
    if (holder.step < 0) {
      state.emplace_back(-1, 0, 0);
    } else {
      state.emplace_back(holder.step - step, holder.micro_batch, holder.to_come);
    }
  }
  return state;
}

void SlotAssignment::finish(const Occurrence& occurrence) {
  const Action& action = schedule_.actions[occurrence.index];
  for (Holder& holder : holders_) {
    const bool is_own = holder.step == occurrence.step && holder.micro_batch == action.micro_batch;
    if (is_own && --holder.to_come == 0) holder.step = -1;
  }
}

}  // namespace mylos
