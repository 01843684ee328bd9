// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/activation_plan.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

namespace mylos {

namespace {

using Intervals = std::vector<LiveInterval>;

/// A result and an operand that may share memory.
struct SharedPair {
  int result = 0;
  int operand = 0;
  std::set<std::int64_t> ticks;
};

/// Whether result and operand are never live at the same time, except at `ticks`, when the result replaces
/// the operand.
bool follows(const Intervals& result, const Intervals& operand, const std::set<std::int64_t>& ticks) {
  auto r = result.begin();
  auto o = operand.begin();
  while (r != result.end() && o != operand.end()) {
    const bool is_replaced = o->last == r->first && ticks.contains(r->first);
    if (o->last < r->first || is_replaced) {
      ++o;
    } else if (r->last < o->first) {
      ++r;
    } else {
      return false;
    }
  }
  return true;
}

/// The intervals of `a` and `b` in order; intervals that share ticks are joined.
Intervals merged(const Intervals& a, const Intervals& b) {
  Intervals all;
  std::ranges::merge(a, b, std::back_inserter(all), {}, &LiveInterval::first, &LiveInterval::first);
  Intervals joined;
  for (const LiveInterval& live : all) {
    if (!joined.empty() && live.first <= joined.back().last) {
      joined.back().last = std::max(joined.back().last, live.last);
    } else {
      joined.push_back(live);
    }
  }
  return joined;
}

/// Collects, for the roots of one slot, the intervals in which they hold a value that is still to be read.
class Lifetimes {
 public:
  explicit Lifetimes(const Roots& roots) : roots_(roots), live_(roots.all().size()) {}

  void add(const Passage& passage, std::int64_t first_tick) {
    if (passage.brings_tokens) {
      for (const char* name : {"tokens", "targets"}) {
        if (const int root = roots_.find(name); root >= 0) write({root}, first_tick);
      }
    }
    if (passage.program == nullptr) {
      if (passage.access == Access::read) {
        read({passage.message}, first_tick);
      } else {
        write({passage.message}, first_tick);
      }
      return;
    }
    std::int64_t tick = first_tick;
    for (const Entry& entry : passage.program->entries) add(entry, tick++);
  }

  /// Gives each result the memory of an operand that it may replace, if `follows` holds for the two.
  /// Returns the buffer in `arena` of each root: the same one if roots share memory, -1 if this slot does not
  /// use the root.
  std::vector<int> place(ArenaPlan& arena) {
    std::vector<int> owner(live_.size());
    std::iota(owner.begin(), owner.end(), 0);
    const auto owner_of = [&](int root) {
      while (owner[index(root)] != root) root = owner[index(root)];
      return root;
    };
    for (const SharedPair& pair : pairs_) {
      const int result = owner_of(pair.result);
      const int operand = owner_of(pair.operand);
      if (result == operand || !follows(of(result), of(operand), pair.ticks)) continue;
      of(operand) = merged(of(operand), of(result));
      owner[index(result)] = operand;
    }
    std::vector<int> buffers(live_.size(), -1);
    for (int root = 0; root < std::ssize(buffers); ++root) {
      const int own = owner_of(root);
      if (of(own).empty()) continue;
      int& buffer = buffers[index(own)];
      if (buffer < 0) buffer = arena.add(roots_.all()[index(own)].bytes, of(own));
      buffers[index(root)] = buffer;
    }
    return buffers;
  }

 private:
  static std::size_t index(int root) { return static_cast<std::size_t>(root); }
  Intervals& of(int root) { return live_[index(root)]; }
  const Root& root_of(const TensorRef& tensor) const { return roots_.all()[index(place_of(tensor).root)]; }

  void add(const Entry& entry, std::int64_t tick) {
    const auto each = [&](const auto& visit) {
      for_each_place(entry, [&](const Place& place, Access access) {
        if (roots_.all()[index(place.root)].kind == RootKind::activation) visit(place, access);
      });
    };
    each([&](const Place& place, Access access) {
      if (access == Access::read || access == Access::update) read(place, tick);
    });
    each([&](const Place& place, Access access) {
      if (access == Access::write || access == Access::scratch) write(place, tick);
    });
    for_each_in_place(entry, [&](const TensorRef& result, const TensorRef& operand) {
      const std::size_t bytes = result.bytes();
      if (root_of(result).bytes != bytes || root_of(operand).bytes != bytes) return;
      share(place_of(result).root, place_of(operand).root, tick);
    });
  }
  void read(const Place& place, std::int64_t tick) {
    Intervals& live = of(place.root);
    require(!live.empty(), "an activation is written before it is read");
    live.back().last = tick;
  }
  /// A write at a positive offset continues the value that the write at offset 0 began.
  void write(const Place& place, std::int64_t tick) {
    Intervals& live = of(place.root);
    if (place.offset > 0) return read(place, tick);
    require(live.empty() || live.back().last < tick, "an operation does not read what it writes");
    live.push_back({tick, tick});
  }
  void share(int result, int operand, std::int64_t tick) {
    const auto is_same = [&](const SharedPair& pair) {
      return pair.result == result && pair.operand == operand;
    };
    auto found = std::ranges::find_if(pairs_, is_same);
    if (found == pairs_.end()) found = pairs_.insert(found, {result, operand, {}});
    found->ticks.insert(tick);
  }

  const Roots& roots_;
  std::vector<Intervals> live_;    // by root
  std::vector<SharedPair> pairs_;  // in the order of execution
};

}  // namespace

ActivationPlan::ActivationPlan(const Roots& roots, const std::vector<Passage>& passages) {
  int num_slots = 0;
  for (const Passage& passage : passages) num_slots = std::max(num_slots, passage.slot + 1);
  std::vector<Lifetimes> lifetimes(static_cast<std::size_t>(num_slots), Lifetimes(roots));
  std::int64_t tick = 0;
  for (std::size_t i = 0; i < passages.size(); ++i) {
    const Passage& passage = passages[i];
    lifetimes[static_cast<std::size_t>(passage.slot)].add(passage, tick);
    const bool is_message = passage.program == nullptr;
    // Neighbouring messages are under way at the same time.
    const bool is_joined = is_message && i + 1 < passages.size() && passages[i + 1].program == nullptr;
    if (!is_joined) tick += is_message ? 1 : std::ssize(passage.program->entries);
  }
  for (Lifetimes& slot : lifetimes) buffers_.push_back(slot.place(arena_));
  arena_.solve();
}

const Program& program_of(const Action& action, const ModelPrograms& programs) {
  const ChunkPrograms& chunk = programs.chunks[static_cast<std::size_t>(action.chunk)];
  if (action.kind == ActionKind::forward) return chunk.forward;
  return action.kind == ActionKind::backward_weight ? chunk.backward.back() : chunk.backward.front();
}

int message_of(const Action& action, const ModelPrograms& programs) {
  const ChunkPrograms& chunk = programs.chunks[static_cast<std::size_t>(action.chunk)];
  int root = -1;
  if (action.kind == ActionKind::send_forward) root = chunk.output;
  if (action.kind == ActionKind::receive_forward) root = chunk.input;
  if (action.kind == ActionKind::send_backward) root = chunk.input_gradient;
  if (action.kind == ActionKind::receive_backward) root = chunk.output_gradient;
  require(root >= 0, "a message carries the residual stream or its gradient between chunks");
  return root;
}

namespace {

/// Whether the last three pairs of passages are equal, so that the last pair adds nothing to the plan.
bool ends_in_repetition(const std::vector<Passage>& passages) {
  constexpr std::size_t pair = 2;
  if (passages.size() < 3 * pair) return false;
  const auto end = passages.end();
  return std::equal(end - pair, end, end - 2 * pair) && std::equal(end - pair, end, end - 3 * pair);
}

/// The number of steps of the longest run whose sequence of slots differs from those of shorter runs. A round
/// is a number of steps after which the slots are back in the same state. The longest run contains two
/// rounds, so that the plan sees every value that lives from one round to the next.
std::int64_t num_distinct_runs(const Schedule& schedule) {
  if (schedule.ahead() == 0) return 1;
  SlotAssignment slots(schedule);
  std::vector<SlotAssignment::State> states;
  for (std::int64_t step = 1;; ++step) {
    schedule.for_each_action(step, step > 1, std::numeric_limits<std::int64_t>::max(),
                             [&](const Occurrence& occurrence) {
                               if (!is_of_micro_batch(schedule.actions[occurrence.index].kind)) return;
                               slots.of(occurrence);
                               slots.finish(occurrence);
                             });
    states.push_back(slots.state(step));
    const auto round = std::ranges::find(states, states.back());
    if (round + 1 != states.end()) return step + (states.end() - round - 1) + schedule.ahead();
  }
}

}  // namespace

std::vector<Passage> passages_of(const Schedule& schedule, const ModelPrograms& programs) {
  std::vector<Passage> passages;
  const auto add = [&](const Occurrence& occurrence, SlotAssignment& slots) {
    const Action& action = schedule.actions[occurrence.index];
    if (!is_of_micro_batch(action.kind)) return;
    Passage passage{.slot = slots.of(occurrence), .brings_tokens = slots.is_new()};
    if (is_message(action.kind)) {
      passage.message = message_of(action, programs);
      passage.access = is_sent(action.kind) ? Access::read : Access::write;
    } else {
      passage.program = &program_of(action, programs);
    }
    slots.finish(occurrence);
    passages.push_back(passage);
    if (ends_in_repetition(passages)) passages.resize(passages.size() - 2);
  };
  // Runs of every length, up to the longest distinct one.
  const std::int64_t longest = num_distinct_runs(schedule);
  for (std::int64_t last = 1; last <= longest; ++last) {
    SlotAssignment slots(schedule);
    for (std::int64_t step = 1; step <= last; ++step) {
      schedule.for_each_action(step, step > 1, last,
                               [&](const Occurrence& occurrence) { add(occurrence, slots); });
    }
  }
  passages.push_back({.program = &programs.evaluate});
  passages.push_back({.program = &programs.generate});
  return passages;
}

}  // namespace mylos
