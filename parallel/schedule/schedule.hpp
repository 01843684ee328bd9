// SPDX-License-Identifier: BSD-3-Clause
// Schedule: the actions of a rank in a step, as data. TrainingStep executes it, the planner reads it, and
// `mylos inspect --program` lists it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/param_values.hpp"
#include "parallel/repetition.hpp"

namespace mylos {

enum class ActionKind : std::uint8_t {
  forward,           ///< micro-batch `micro_batch` through chunk `chunk` of the model's blocks
  backward,          ///< the gradients, back through chunk `chunk`; in the last chunk also the loss
  backward_input,    ///< the part of `backward` that the previous chunk waits for
  backward_weight,   ///< the rest of `backward`: gradients of weights
  send_forward,      ///< sends the output of the chunk to stage `peer`
  receive_forward,   ///< receives the input of the chunk from stage `peer`
  send_backward,     ///< sends the gradient of the chunk's input to stage `peer`
  receive_backward,  ///< receives the gradient of the chunk's output from stage `peer`
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

/// Whether the action works on the activations of a micro-batch.
constexpr bool is_of_micro_batch(ActionKind kind) {
  return kind < ActionKind::reduce;
}
/// Whether the action is a backward pass or a part of one.
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

/// One action of a rank.
struct Action {
  ActionKind kind = ActionKind::forward;
  int micro_batch = 0;
  int chunk = 0;
  int ahead = 0;  ///< steps from the one that the period completes to the one that the action belongs to
  int peer = -1;  ///< of a message: the other stage or, if stages have replicas, the list of the other rank
  int peer_stage = -1;  ///< of a message between replicas: the stage of the other rank

  bool operator==(const Action&) const = default;
};

/// An action as text: "forward of micro-batch 3, chunk 1", "activations of micro-batch 3 from stage 0". Made
/// without allocating.
class ActionText {
 public:
  /// `chunks` is the number of the model's chunks: that of a pass is named if there are several, that of a
  /// message unless it is 0.
  ActionText(const Action& action, int chunks);
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 64> text_{};
  std::size_t size_ = 0;
};

/// An action and the step that it belongs to.
struct Occurrence {
  std::size_t index = 0;  ///< of the action
  std::int64_t step = 0;
};

/// Which version of its weights a chunk uses for a micro-batch, in both of its passes and in recomputation.
/// Micro-batches are numbered k = 0, 1, ... through the run, over all replicas; version t is that after t
/// updates, and update t makes it from micro-batches (t - 1) A ... t A - 1 (Narayanan et al., 2019, section
/// 3.3). Because it is a function of k alone, draining the pipeline changes nothing.
struct VersionRule {
  int micro_batches = 1;  ///< A, of a step
  int delay = 0;          ///< in micro-batches

  std::int64_t version_of(std::int64_t k) const {
    return std::max<std::int64_t>(0, k - delay) / micro_batches;
  }
  /// The number of versions that are in use at one time.
  int versions() const { return (delay + micro_batches - 1) / micro_batches + 1; }

  bool operator==(const VersionRule&) const = default;
};

/// The actions of one rank in a period: from the completion of one step to the completion of the next. If
/// some actions are ahead, the first step begins with the actions that earlier periods would have done for it
/// and for later steps (the prologue), and the last steps leave out the actions of steps beyond the last one
/// (the drain).
struct Schedule {
  std::vector<Action> actions;
  int micro_batches = 1;
  int chunks = 1;
  /// Of an asynchronous pipeline, by chunk of the model; then each `step` updates one chunk. Otherwise empty:
  /// a step uses the weights that the one before it made.
  std::vector<VersionRule> rules{};
  /// Sets of gradients, which steps use in turn: with two, the backward passes of a step may begin before the
  /// update of the one before.
  int gradient_sets = 1;

  /// The largest number of steps that an action is ahead.
  int ahead() const;
  /// Calls visit(occurrence) for the actions of the period that completes step `step`, including the prologue
  /// unless `is_begun`, and excluding actions of steps after `last`.
  void for_each_action(std::int64_t step, bool is_begun, std::int64_t last, const auto& visit) const {
    for (std::int64_t period = is_begun ? step : step - ahead(); period <= step; ++period) {
      for (std::size_t i = 0; i < actions.size(); ++i) {
        const std::int64_t own = period + actions[i].ahead;
        if (own >= step && own <= last) visit(Occurrence{i, own});
      }
    }
  }
  /// Whether no later action of the same step has the same kind and chunk.
  bool is_last(std::size_t index) const;
  bool has(ActionKind kind) const;
  /// The chunks that micro-batches pass through on this rank.
  std::set<int> held_chunks() const;
};

/// The schedules of all stages for playing: if their steps overlap, as one long step with the passes of so
/// many steps that there are `micro_batches` or more, numbered through.
std::vector<Schedule> unrolled(std::vector<Schedule> stages, int micro_batches);

/// A schedule with few micro-batches that stands for one with many, so that plans made from it do not grow
/// with the number of micro-batches.
struct ScheduleExcerpt {
  Schedule schedule;
  Repetition actions;  ///< of `schedule`: the actions of the micro-batches that are repeated
};
/// Shortens a schedule whose middle repeats the same actions for micro-batch after micro-batch, in linear
/// time; returns any other schedule in full. Micro-batches are left out of the middle, and those after them
/// take their numbers, so that the result is the schedule of fewer micro-batches, and each of its actions has
/// the slots of all actions that it stands for.
ScheduleExcerpt excerpt_of(const Schedule& schedule);

/// Assigns slots of activations to micro-batches in flight. There are as many slots as the largest number of
/// micro-batches in flight at the same time.
class SlotAssignment {
 public:
  /// `schedule` must outlive this object.
  explicit SlotAssignment(const Schedule& schedule);

  /// The slot of an action that works on activations. The first action of a micro-batch takes a free slot.
  int of(const Occurrence& occurrence);
  /// Whether `of` has just given the micro-batch its slot.
  bool is_new() const { return is_new_; }
  /// Ends the action: if it was the last of its micro-batch, the slot is free.
  void finish(const Occurrence& occurrence);
  int num_slots() const { return static_cast<int>(holders_.size()); }
  /// The content of each slot relative to `step`: number of steps after it (-1: free slot), micro-batch,
  /// number of actions to come.
  using State = std::vector<std::tuple<std::int64_t, int, int>>;
  State state(std::int64_t step) const;

 private:
  struct Holder {
    std::int64_t step = -1;  // -1: the slot is free
    int micro_batch = 0;
    int to_come = 0;  // number of actions
  };

  const Schedule& schedule_;
  std::vector<int> num_actions_;  // by micro-batch
  std::vector<Holder> holders_;   // by slot
  bool is_new_ = false;
};

/// The times that the passes of a chunk take, in any unit.
struct PassTimes {
  double forward = 1.0;
  double input = 1.0;   ///< ActionKind::backward_input
  double weight = 1.0;  ///< ActionKind::backward_weight

  double backward() const { return input + weight; }
  /// The time of an action: 0 if it is no pass.
  double of(ActionKind kind) const;
};

/// What schedules are made from.
struct ScheduleScope {
  int micro_batches = 1;
  int stages = 1;  ///< p, ranks along Axis::pipeline
  int chunks = 1;  ///< v, parts of the model per stage
  /// Of an asynchronous pipeline: ranks of each stage that take a step's micro-batches in turn; empty: one.
  std::vector<int> replicas{};
  int in_flight = 0;                    ///< parallel.in_flight: 0 stands for p
  std::vector<PassTimes> times{};       ///< by chunk of the model; empty: the passes of all chunks take 1
  std::string_view file{};              ///< the content of parallel.schedule_file
  const ParamValues* values = nullptr;  ///< of the deck; contains at least section parallel

  int num_chunks() const { return stages * chunks; }
  int replicas_of(int stage) const {
    return replicas.empty() ? 1 : replicas[static_cast<std::size_t>(stage)];
  }
  PassTimes times_of(int chunk) const {
    return times.empty() ? PassTimes() : times[static_cast<std::size_t>(chunk)];
  }
};

/// A way to order the passes of a step, which a deck selects by name.
struct ScheduleKind {
  const char* name;
  const char* doc;
  /// Chunks per stage; 0: as many as the deck says.
  int chunks = 1;
  bool follows_times = false;  ///< whether the lists depend on the times of the passes
  /// The stage of each chunk; null: chunk c lies on stage c mod p.
  std::vector<int> (*place)(const ScheduleScope& scope) = nullptr;
  /// Returns the schedules of all stages, without messages; of an asynchronous pipeline those of all
  /// replicas, stage by stage, each with its own micro-batches of the step.
  std::vector<Schedule> (*make)(const ScheduleScope& scope) = nullptr;
  /// Of an asynchronous pipeline: Schedule::rules. If one stage has all chunks, it emulates as many stages.
  std::vector<VersionRule> (*rules)(const ScheduleScope& scope) = nullptr;

  bool is_asynchronous() const { return rules != nullptr; }

  /// The stage of each chunk of the model.
  std::vector<int> stages_of_chunks(const ScheduleScope& scope) const;
};

/// Of an asynchronous pipeline: how many micro-batches each replica of a stage has in flight, if those of the
/// next stage have `following` together (0: there is none): one more than it takes to keep them busy.
constexpr int in_flight_before(int replicas, int following) {
  return following == 0 ? 1 : (following + replicas - 1) / replicas + 1;
}
/// By how many micro-batches a stage's weights may be behind: with one replica by those that follow in
/// flight, with several by one more on each, so that none waits for the gradient of another.
constexpr int delay_of(int replicas, int in_flight) {
  return replicas == 1 ? in_flight - 1 : in_flight * replicas;
}
/// How many micro-batches each replica has in flight, by stage.
std::vector<int> micro_batches_in_flight(const ScheduleScope& scope);

/// All kinds, the default first.
std::span<const ScheduleKind* const> schedules();

}  // namespace mylos
