// SPDX-License-Identifier: BSD-3-Clause
// Schedule: what a rank does in a step, as data. TrainingStep executes it; planner, validator and report read
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "parallel/repetition.hpp"

namespace mylos {

enum class ActionKind : std::uint8_t {
  forward,           ///< micro-batch `micro_batch` through chunk `chunk` of the model's blocks
  backward,          ///< the loss and its gradient, back through the chunk
  backward_input,    ///< the part of it that the chunk before waits for
  backward_weight,   ///< the rest: gradients of weights
  send_forward,      ///< what the chunk hands on to stage `peer`
  receive_forward,   ///< what the chunk gets from it
  send_backward,     ///< the gradient of what the chunk got
  receive_backward,  ///< the gradient of what it handed on
  reduce,            ///< the gradients of the step become complete on their owners
  step,              ///< guard, optimizer, publication of the weights
};
inline constexpr int num_action_kinds = 10;

constexpr std::string_view name_of(ActionKind kind) {
  constexpr std::array<std::string_view, num_action_kinds> names = {
      "forward",         "backward",      "backward_input",   "backward_weight", "send_forward",
      "receive_forward", "send_backward", "receive_backward", "reduce",          "step"};
  return names[static_cast<std::size_t>(kind)];
}

/// Whether it works on the activations of a micro-batch.
constexpr bool is_of_micro_batch(ActionKind kind) {
  return kind < ActionKind::reduce;
}
/// Whether it is a pass back or a part of one.
constexpr bool is_backward(ActionKind kind) {
  return kind >= ActionKind::backward && kind <= ActionKind::backward_weight;
}
constexpr bool is_message(ActionKind kind) {
  return kind >= ActionKind::send_forward && kind <= ActionKind::receive_backward;
}

/// Whether a message leaves the rank.
constexpr bool is_sent(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::send_backward;
}

/// One thing a rank does.
struct Action {
  ActionKind kind = ActionKind::forward;
  int micro_batch = 0;
  int chunk = 0;
  int ahead = 0;  ///< it belongs to the step so many after the one that these actions complete
  int peer = -1;  ///< of a message

  bool operator==(const Action&) const = default;
};

/// An action and the step that it belongs to.
struct Occurrence {
  std::size_t index = 0;  ///< of the action
  std::int64_t step = 0;
};

/// What one rank does from the completion of one step to that of the next. If some actions are ahead, the
/// first step begins with those that earlier periods would have done for it (the prologue), and the last one
/// leaves out what is ahead (the drain).
struct Schedule {
  std::vector<Action> actions;
  int micro_batches = 1;
  int chunks = 1;
  /// Whether the weights may change between the passes of a micro-batch, as in asynchronous pipelines.
  bool tolerates_stale_weights = false;

  /// How many steps ahead the earliest action is.
  int ahead() const;
  /// Calls visit(occurrence) for what completes step `step`: after the prologue unless the step was begun,
  /// and without what belongs to a step after `last`.
  template <class Visit>
  void for_each_action(std::int64_t step, bool is_begun, std::int64_t last, const Visit& visit) const {
    for (std::int64_t period = is_begun ? step : step - ahead(); period <= step; ++period) {
      for (std::size_t i = 0; i < actions.size(); ++i) {
        const std::int64_t own = period + actions[i].ahead;
        if (own >= step && own <= last) visit(Occurrence{i, own});
      }
    }
  }
  /// Whether no action that a step comes to later is of the same kind and chunk.
  bool is_last(std::size_t index) const;
  bool has(ActionKind kind) const;
  /// The chunks that micro-batches pass through.
  std::set<int> held_chunks() const;
};

/// A schedule with few micro-batches that shows all that one with many does: what is planned from it does not
/// grow with their number.
struct ScheduleExcerpt {
  Schedule schedule;
  Repetition actions;  ///< of `schedule`: those of a micro-batch that others do likewise
};
/// Of a schedule that passes more than a few micro-batches one after another; of others it is all.
ScheduleExcerpt excerpt_of(const Schedule& schedule);

/// Assigns slots of activations to micro-batches in flight: as few as ever are.
class SlotAssignment {
 public:
  /// `schedule` outlives this.
  explicit SlotAssignment(const Schedule& schedule);

  /// The slot of an action that works on activations; one that is the first of its micro-batch takes a free
  /// one.
  int of(const Occurrence& occurrence);
  /// Whether `of` has just given the micro-batch its slot.
  bool is_new() const { return is_new_; }
  /// The action is done: if it was the last of its micro-batch, the slot is free.
  void finish(const Occurrence& occurrence);
  int num_slots() const { return static_cast<int>(holders_.size()); }
  /// What the slots hold, seen from `step`: steps after it, micro-batch, actions to come.
  using State = std::vector<std::tuple<std::int64_t, int, int>>;
  State state(std::int64_t step) const;

 private:
  struct Holder {
    std::int64_t step = -1;  // none
    int micro_batch = 0;
    int to_come = 0;  // actions
  };

  const Schedule& schedule_;
  std::vector<int> num_actions_;  // by micro-batch
  std::vector<Holder> holders_;   // by slot
  bool is_new_ = false;
};

/// A way to order the micro-batches of a step, as decks know it.
struct ScheduleKind {
  const char* name;
  const char* doc;
  Schedule (*make)(int micro_batches);
};

/// All of them, the default first.
std::span<const ScheduleKind* const> schedules();

/// What is wrong with the schedules of ranks that work together, `ranks[r]` being that of stage r; empty if
/// nothing is. Every step of every micro-batch passes once forward and once backward through each chunk, in
/// an order in which each pass finds what it needs; gradients are reduced and applied once, and those of two
/// steps do not mix; messages meet their receivers without deadlock. Neighbouring messages of a rank are
/// posted together; channels keep their order, have no tags and no room (as NCCL's).
std::vector<std::string> problems_of(std::span<const Schedule> ranks);

}  // namespace mylos
