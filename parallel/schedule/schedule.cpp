// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace mylos {

ActionText::ActionText(const Action& action, int chunks) {
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    const std::size_t room = text_.size() - size_;
    const auto added = fmt::format_to_n(text_.data() + size_, room, format, std::forward<Args>(args)...);
    size_ += std::min(room, added.size);
  };
  if (is_message(action.kind)) {
    const bool is_forward =
        action.kind == ActionKind::send_forward || action.kind == ActionKind::receive_forward;
    add("{} of micro-batch {}", is_forward ? "activations" : "gradients", action.micro_batch);
    if (chunks > 0) add(", chunk {},", action.chunk);
    const char* direction = is_sent(action.kind) ? "to" : "from";
    if (action.peer_stage < 0) {
      add(" {} stage {}", direction, action.peer);
    } else {
      add(" {} stage {} (list {})", direction, action.peer_stage, action.peer);
    }
    return;
  }
  add("{}", name_of(action.kind));
  if (is_of_micro_batch(action.kind)) add(" of micro-batch {}", action.micro_batch);
  if (is_of_micro_batch(action.kind) && chunks > 1) add(", chunk {}", action.chunk);
}

double PassTimes::of(ActionKind kind) const {
  if (kind == ActionKind::forward) return forward;
  if (kind == ActionKind::backward) return backward();
  if (kind == ActionKind::backward_input) return input;
  return kind == ActionKind::backward_weight ? weight : 0.0;
}

std::vector<int> ScheduleKind::stages_of_chunks(const ScheduleScope& scope) const {
  if (place != nullptr) return place(scope);
  std::vector<int> stages;
  for (int chunk = 0; chunk < scope.num_chunks(); ++chunk) stages.push_back(chunk % scope.stages);
  return stages;
}

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

namespace {

/// An action of a later period of `micro_batches` micro-batches.
Action moved(Action action, int micro_batches) {
  if (is_of_micro_batch(action.kind)) action.micro_batch += micro_batches;
  return action;
}

/// Periods of the same actions, each for later micro-batches than the one before.
struct SteadyState {
  std::size_t begin = 0;  ///< action
  std::size_t periods = 0;
  std::size_t length = 0;  ///< of a period, in actions
  int micro_batches = 0;   ///< of a period

  std::size_t end() const { return begin + periods * length; }
};

/// Whether any periods of the steady state can be left out: in it are the same micro-batches of every kind of
/// action and chunk as often as others, and the actions before it are of earlier ones, those after it of
/// later ones.
bool can_leave_out(const Schedule& schedule, const SteadyState& steady) {
  struct Range {
    int first = std::numeric_limits<int>::max();
    int last = -1;
    int actions = 0;
    void add(int micro_batch) {
      first = std::min(first, micro_batch);
      last = std::max(last, micro_batch);
      ++actions;
    }
  };
  std::map<std::pair<ActionKind, int>, std::array<Range, 3>> ranges;  // before, within and after
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    if (!is_of_micro_batch(action.kind)) continue;
    const std::size_t where = i < steady.begin ? 0 : i < steady.end() ? 1 : 2;
    ranges[{action.kind, action.chunk}][where].add(action.micro_batch);
  }
  return std::ranges::all_of(ranges, [&](const auto& of_kind) {
    const auto& [before, within, after] = of_kind.second;
    const int all = static_cast<int>(steady.periods) * steady.micro_batches;
    return within.actions == all && within.last - within.first == all - 1 && before.last < within.first &&
           within.last < after.first;
  });
}

/// The steady state around the middle of the list, if it has at least five periods.
std::optional<SteadyState> steady_state(const Schedule& schedule) {
  constexpr std::size_t least = 5;
  const std::vector<Action>& all = schedule.actions;
  const std::size_t middle = all.size() / 2;
  int candidates = 64;
  for (std::size_t length = 1; middle + length < all.size() && least * length <= all.size(); ++length) {
    const int micro_batches = all[middle + length].micro_batch - all[middle].micro_batch;
    const auto repeats = [&](std::size_t i) { return all[i + length] == moved(all[i], micro_batches); };
    if (micro_batches <= 0 || !is_of_micro_batch(all[middle].kind) || !repeats(middle)) continue;
    if (candidates-- == 0) break;
    std::size_t begin = middle;
    std::size_t end = middle;  // of the actions that repeat; the last period follows
    while (begin > 0 && repeats(begin - 1)) --begin;
    while (end + length < all.size() && repeats(end)) ++end;
    const SteadyState steady{begin, (end - begin) / length + 1, length, micro_batches};
    if (steady.periods < least) continue;
    if (can_leave_out(schedule, steady)) return steady;
    length = end - begin;  // a longer period does not lie within what repeats with this one
  }
  return std::nullopt;
}

/// Periods of the steady state after which the slots are the same, and the first such period.
struct SlotRotation {
  std::size_t first = 0;
  std::size_t periods = 0;
};
std::optional<SlotRotation> slot_rotation(const Schedule& schedule, const SteadyState& steady) {
  SlotAssignment slots(schedule);
  std::vector<SlotAssignment::State> states;  // by period, with micro-batches relative to the period
  for (std::size_t i = 0; i < steady.end(); ++i) {
    if (i >= steady.begin && (i - steady.begin) % steady.length == 0) {
      SlotAssignment::State state = slots.state(0);
      while (!state.empty() && std::get<0>(state.back()) < 0) state.pop_back();  // free, as if never taken
      for (auto& [step, micro_batch, to_come] : state) {
        if (step >= 0) micro_batch -= steady.micro_batches * static_cast<int>(states.size());
      }
      const auto same = std::ranges::find(states, state);
      const auto first = static_cast<std::size_t>(same - states.begin());
      if (same != states.end()) return SlotRotation{first, states.size() - first};
      states.push_back(std::move(state));
    }
    if (!is_of_micro_batch(schedule.actions[i].kind)) continue;
    slots.of({i, 0});
    slots.finish({i, 0});
  }
  return std::nullopt;
}

}  // namespace

std::vector<Schedule> unrolled(std::vector<Schedule> stages, int micro_batches) {
  const auto overlaps = [](const Schedule& stage) { return stage.ahead() > 0; };
  if (std::ranges::none_of(stages, overlaps)) return stages;
  for (Schedule& stage : stages) {
    const int own = stage.micro_batches;
    const int steps = std::max(1, (micro_batches + own - 1) / own);
    Schedule whole = stage;
    whole.actions.clear();
    whole.micro_batches = steps * own;
    for (std::int64_t step = 1; step <= steps; ++step) {
      stage.for_each_action(step, step > 1, steps, [&](const Occurrence& occurrence) {
        Action action = moved(stage.actions[occurrence.index], static_cast<int>(occurrence.step - 1) * own);
        action.ahead = 0;
        whole.actions.push_back(action);
      });
    }
    stage = std::move(whole);
  }
  return stages;
}

ScheduleExcerpt excerpt_of(const Schedule& schedule) {
  const auto whole = [&] { return ScheduleExcerpt{.schedule = schedule, .actions = {}}; };
  const std::optional<SteadyState> steady = steady_state(schedule);
  if (!steady) return whole();
  const std::optional<SlotRotation> rotation = slot_rotation(schedule, *steady);
  if (!rotation) return whole();
  // What is repeated is a rotation, so that it takes the same slots each time. What a period leaves under way
  // ends when its slots are used again, at the latest. One period more, because work that a period begins for
  // the next, such as gathers of weights, ends while that begins the same work for the one after it.
  const std::size_t margin = rotation->periods + 1;
  const std::size_t before = rotation->first + margin;
  if (steady->periods < before + margin + 2 * rotation->periods) return whole();
  const std::size_t times = (steady->periods - before - margin) / rotation->periods;
  const std::size_t length = rotation->periods * steady->length;
  const std::size_t begin = steady->begin + before * steady->length;
  const std::size_t end = begin + times * length;
  const int left_out = static_cast<int>((times - 1) * rotation->periods) * steady->micro_batches;

  ScheduleExcerpt excerpt{.schedule = {.actions = {},
                                       .micro_batches = schedule.micro_batches - left_out,
                                       .chunks = schedule.chunks,
                                       .rules = schedule.rules,
                                       .gradient_sets = schedule.gradient_sets},
                          .actions = {.begin = begin, .end = begin + length, .times = times}};
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    if (i < begin + length) excerpt.schedule.actions.push_back(schedule.actions[i]);
    if (i >= end) excerpt.schedule.actions.push_back(moved(schedule.actions[i], -left_out));
  }
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
