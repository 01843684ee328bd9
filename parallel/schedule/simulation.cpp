// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/simulation.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "parallel/schedule/logical_clock.hpp"

namespace mylos {

namespace {

/// The passes of all stages as items of a clock.
class Passes final : public ClockSource {
 public:
  Passes(std::span<const Schedule> stages, std::span<const PassTimes> times, const MessageTime& message)
      : schedules_(stages),
        message_(message),
        clock_(stages.size(), stages.size() * stages.size()),
        lanes_(stages.size()) {
    for (const Schedule& schedule : stages) {
      chunks_ = std::max(chunks_, static_cast<std::size_t>(schedule.chunks));
      micro_batches_ = std::max(micro_batches_, static_cast<std::size_t>(schedule.micro_batches));
    }
    times_.assign(times.begin(), times.end());
    if (times.empty()) times_.resize(chunks_);
    require(times_.size() == chunks_, "every chunk has its times");
    std::vector<std::size_t> stage_of(chunks_ * micro_batches_);
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      result_.stages.emplace_back().actions.resize(stages[stage].actions.size());
      for (const Action& action : stages[stage].actions) {
        const auto chunk = static_cast<std::size_t>(action.chunk);
        const auto micro_batch = static_cast<std::size_t>(action.micro_batch);
        require(chunk < chunks_ && micro_batch < micro_batches_, "passes are of the model and the step");
        if (action.kind == ActionKind::forward) stage_of[place(action)] = stage;
      }
    }
    add_events(stage_of);
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      std::size_t first = stage;  // of the replicas
      for (std::size_t other = 0; other < stage && first == stage && !stages[stage].rules.empty(); ++other) {
        if (stages[other].held_chunks() == stages[stage].held_chunks()) first = other;
      }
      lanes_[stage].first_replica = first;
      ++lanes_[first].replicas;
    }
  }

  Simulation play() {
    clock_.play(*this);
    for (std::size_t stage = 0; stage < schedules_.size(); ++stage) {
      result_.makespan = std::max(result_.makespan, clock_.now(stage));
      if (!result_.stuck && clock_.is_stuck(stage))
        result_.stuck = Simulation::StuckAction{stage, lanes_[stage].action};
    }
    return std::move(result_);
  }

 private:
  struct Lane {
    std::size_t action = 0;
    ClockItem item{};               // of the action
    int kept = 0;                   // activations
    std::size_t first_replica = 0;  // of an asynchronous pipeline: the first stage with its chunk
    int replicas = 0;               // of the first one: how many there are
    std::size_t reduced = 0;        // reductions so far
    std::vector<int> sums{};        // of the first one: events, by number of the reduction
  };

  std::size_t place(const Action& action) const {
    return static_cast<std::size_t>(action.chunk) * micro_batches_ +
           static_cast<std::size_t>(action.micro_batch);
  }
  /// The results of passes, when the stage of the next pass has them.
  void add_events(const std::vector<std::size_t>& stage_of) {
    const std::size_t places = chunks_ * micro_batches_;
    const auto add_message = [&](std::size_t from, std::size_t to) {
      const bool stays = to >= places || stage_of[from] == stage_of[to];
      const auto link = static_cast<int>(stage_of[from] * schedules_.size() + (stays ? 0 : stage_of[to]));
      return clock_.add(
          stays ? ClockEvent{}
                : ClockEvent{.link = link, .seconds = message_.seconds, .latency = message_.alpha});
    };
    clock_.reserve(2 * places + 1);
    never_ = clock_.add({});
    made_.resize(places);
    made_gradients_.resize(places);
    for (std::size_t at = 0; at < places; ++at) {
      outputs_.push_back(add_message(at, at + micro_batches_));
      gradients_.push_back(add_message(at, at - micro_batches_));
    }
  }
  int sum(Lane& first, std::size_t number) {
    while (first.sums.size() <= number) first.sums.push_back(clock_.add({.sides = first.replicas}));
    return first.sums[number];
  }

  /// The event that an action waits for; -1: none.
  int awaited(Lane& lane, const Action& action) {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    const std::size_t own = place(action);
    switch (action.kind) {
      case ActionKind::forward:
        return chunk > 0 ? outputs_[own - micro_batches_] : -1;
      case ActionKind::backward:
      case ActionKind::backward_input:
        if (!made_[own]) return never_;
        return chunk + 1 < chunks_ ? gradients_[own + micro_batches_] : -1;
      case ActionKind::backward_weight:
        return made_gradients_[own] ? -1 : never_;
      case ActionKind::step:
        return lane.reduced > 0 ? sum(lanes_[lane.first_replica], lane.reduced - 1) : -1;
      default:
        return -1;
    }
  }
  /// The event that it posts; -1: none.
  int posted(Lane& lane, const Action& action) {
    if (action.kind == ActionKind::forward) return outputs_[place(action)];
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input)
      return gradients_[place(action)];
    const bool is_sum = action.kind == ActionKind::reduce && !schedules_[lane.first_replica].rules.empty();
    return is_sum ? sum(lanes_[lane.first_replica], lane.reduced++) : -1;
  }

  const ClockItem* next(std::size_t stage) override {
    Lane& lane = lanes_[stage];
    const std::vector<Action>& actions = schedules_[stage].actions;
    if (lane.action == actions.size()) return nullptr;
    const Action& action = actions[lane.action];
    lane.item = {.seconds = times_[static_cast<std::size_t>(action.chunk)].of(action.kind)};
    lane.item.awaits = awaited(lane, action);
    lane.item.posts = posted(lane, action);
    return &lane.item;
  }
  void done(std::size_t stage, const ClockItem& item, double begin, double end) override {
    Lane& lane = lanes_[stage];
    Simulation::Stage& result = result_.stages[stage];
    const Action& action = schedules_[stage].actions[lane.action];
    result.actions[lane.action++] = {begin, end};
    result.busy += item.seconds;
    const std::size_t own = place(action);
    if (action.kind == ActionKind::forward) {
      made_[own] = true;
      result.activations = std::max(result.activations, ++lane.kept);
    }
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input)
      made_gradients_[own] = true;
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) --lane.kept;
  }

  std::span<const Schedule> schedules_;
  MessageTime message_;
  LogicalClock clock_;
  std::size_t chunks_ = 0;
  std::size_t micro_batches_ = 0;
  std::vector<PassTimes> times_;  // by chunk
  // By chunk and micro-batch: whether a pass has made its result, and the event of its arrival at the next
  // one.
  std::vector<bool> made_, made_gradients_;
  std::vector<int> outputs_, gradients_;
  int never_ = -1;           // an event that nothing posts
  std::vector<Lane> lanes_;  // by stage
  Simulation result_;
};

}  // namespace

Simulation simulate(std::span<const Schedule> stages, std::span<const PassTimes> times,
                    const MessageTime& message) {
  return Passes(stages, times, message).play();
}

}  // namespace mylos
