// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/simulation.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "parallel/plan/logical_clock.hpp"

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
    std::size_t item = 0;            // of the action
    std::vector<ClockItem> items{};  // of the action
    int kept = 0;                    // activations
    std::size_t first_replica = 0;   // of an asynchronous pipeline: the first stage with its chunk
    int replicas = 0;                // of the first one: how many there are
    std::size_t reduced = 0;         // reductions so far
    std::vector<int> sums{};         // of the first one: events, by number of the reduction
  };

  std::size_t place(const Action& action) const {
    return static_cast<std::size_t>(action.chunk) * micro_batches_ +
           static_cast<std::size_t>(action.micro_batch);
  }
  /// The results of passes: when the stage itself has them, and the stage of the next pass.
  void add_events(const std::vector<std::size_t>& stage_of) {
    const std::size_t places = chunks_ * micro_batches_;
    const auto add_message = [&](std::size_t from, std::size_t to) {
      const bool stays = to >= places || stage_of[from] == stage_of[to];
      const auto link = static_cast<int>(stage_of[from] * schedules_.size() + (stays ? 0 : stage_of[to]));
      return clock_.add(
          stays ? ClockEvent{}
                : ClockEvent{.link = link, .seconds = message_.seconds, .latency = message_.alpha});
    };
    for (std::size_t at = 0; at < places; ++at) {
      made_.push_back(clock_.add({}));
      made_gradients_.push_back(clock_.add({}));
      outputs_.push_back(add_message(at, at + micro_batches_));
      gradients_.push_back(add_message(at, at - micro_batches_));
    }
  }
  int sum(Lane& first, std::size_t number) {
    while (first.sums.size() <= number) first.sums.push_back(clock_.add({.sides = first.replicas}));
    return first.sums[number];
  }

  void fill(Lane& lane, const Action& action) {
    lane.items.clear();
    lane.item = 0;
    const auto wait = [&](int event) {
      lane.items.push_back({.kind = ClockItem::Kind::wait, .event = event});
    };
    const auto post = [&](int event) {
      lane.items.push_back({.kind = ClockItem::Kind::post, .event = event});
    };
    const auto chunk = static_cast<std::size_t>(action.chunk);
    const std::size_t own = place(action);
    const bool has_replicas = !schedules_[lane.first_replica].rules.empty();
    Lane& first = lanes_[lane.first_replica];
    if (action.kind == ActionKind::forward && chunk > 0) wait(outputs_[own - micro_batches_]);
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input) {
      wait(made_[own]);
      if (chunk + 1 < chunks_) wait(gradients_[own + micro_batches_]);
    }
    if (action.kind == ActionKind::backward_weight) wait(made_gradients_[own]);
    if (action.kind == ActionKind::step && lane.reduced > 0) wait(sum(first, lane.reduced - 1));
    lane.items.push_back({.seconds = times_[chunk].of(action.kind)});
    if (action.kind == ActionKind::forward) {
      post(made_[own]);
      post(outputs_[own]);
    } else if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input) {
      post(made_gradients_[own]);
      post(gradients_[own]);
    } else if (action.kind == ActionKind::reduce && has_replicas) {
      post(sum(first, lane.reduced++));
    }
  }

  const ClockItem* next(std::size_t stage) override {
    Lane& lane = lanes_[stage];
    const std::vector<Action>& actions = schedules_[stage].actions;
    if (lane.items.empty() && lane.action < actions.size()) fill(lane, actions[lane.action]);
    return lane.action < actions.size() ? &lane.items[lane.item] : nullptr;
  }
  void done(std::size_t stage, const ClockItem& item, double begin, double end) override {
    Lane& lane = lanes_[stage];
    if (item.kind == ClockItem::Kind::work) {
      Simulation::Stage& result = result_.stages[stage];
      const ActionKind kind = schedules_[stage].actions[lane.action].kind;
      result.actions[lane.action] = {begin, end};
      result.busy += item.seconds;
      if (kind == ActionKind::forward) result.activations = std::max(result.activations, ++lane.kept);
      if (kind == ActionKind::backward || kind == ActionKind::backward_weight) --lane.kept;
    }
    if (++lane.item < lane.items.size()) return;
    lane.items.clear();
    ++lane.action;
  }

  std::span<const Schedule> schedules_;
  MessageTime message_;
  LogicalClock clock_;
  std::size_t chunks_ = 0;
  std::size_t micro_batches_ = 0;
  std::vector<PassTimes> times_;  // by chunk
  // Events, by chunk and micro-batch: a pass's result is there, and where the next one needs it.
  std::vector<int> made_, made_gradients_, outputs_, gradients_;
  std::vector<Lane> lanes_;  // by stage
  Simulation result_;
};

}  // namespace

Simulation simulate(std::span<const Schedule> stages, std::span<const PassTimes> times,
                    const MessageTime& message) {
  return Passes(stages, times, message).play();
}

}  // namespace mylos
