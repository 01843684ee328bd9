// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/simulation.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace mylos {

namespace {

class Player {
 public:
  Player(std::span<const Schedule> stages, std::span<const PassTimes> times, const MessageTime& message)
      : schedules_(stages), message_(message), state_(stages.size()) {
    for (const Schedule& schedule : stages) {
      chunks_ = std::max(chunks_, static_cast<std::size_t>(schedule.chunks));
      micro_batches_ = std::max(micro_batches_, static_cast<std::size_t>(schedule.micro_batches));
    }
    times_.assign(times.begin(), times.end());
    if (times.empty()) times_.resize(chunks_);
    require(times_.size() == chunks_, "every chunk has its times");
    outputs_.assign(chunks_ * micro_batches_, never);
    gradients_.assign(chunks_ * micro_batches_, never);
    link_free_.resize(stages.size() * stages.size());
    stage_of_.assign(chunks_ * micro_batches_, 0);
    replicas_.resize(stages.size());
    reduced_.resize(stages.size());
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      for (std::size_t other = 0; other < stages.size() && !stages[stage].rules.empty(); ++other) {
        if (stages[other].held_chunks() == stages[stage].held_chunks()) replicas_[stage].push_back(other);
      }
    }
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      result_.stages.emplace_back().actions.resize(stages[stage].actions.size());
      for (const Action& action : stages[stage].actions) {
        const auto chunk = static_cast<std::size_t>(action.chunk);
        const auto micro_batch = static_cast<std::size_t>(action.micro_batch);
        require(chunk < chunks_ && micro_batch < micro_batches_, "passes are of the model and the step");
        if (action.kind == ActionKind::forward) stage_of_[place(chunk, action.micro_batch)] = stage;
      }
    }
  }

  Simulation play() {
    for (std::size_t stage = 0; stage < schedules_.size(); ++stage) wake(stage);
    while (!awake_.empty()) {
      const std::size_t stage = awake_.back();
      awake_.pop_back();
      state_[stage].is_awake = false;
      play(stage);
    }
    for (std::size_t stage = 0; stage < schedules_.size(); ++stage) {
      result_.makespan = std::max(result_.makespan, state_[stage].now);
      const std::size_t next = state_[stage].next;
      if (!result_.stuck && next < schedules_[stage].actions.size())
        result_.stuck = Simulation::StuckAction{stage, next};
    }
    return std::move(result_);
  }

 private:
  static constexpr double never = -1.0;
  struct State {
    std::size_t next = 0;  // action
    double now = 0.0;
    int kept = 0;  // activations
    bool is_awake = false;
  };

  std::size_t place(std::size_t chunk, int micro_batch) const {
    return chunk * micro_batches_ + static_cast<std::size_t>(micro_batch);
  }
  void wake(std::size_t stage) {
    if (state_[stage].is_awake) return;
    state_[stage].is_awake = true;
    awake_.push_back(stage);
  }

  /// When all replicas of a list's chunk have reduced the gradients that it has reduced last; `never`: not
  /// yet known.
  double summed(std::size_t stage) const {
    const std::size_t number = reduced_[stage].size();
    double latest = 0.0;
    for (const std::size_t replica : replicas_[stage]) {
      if (reduced_[replica].size() < number) return never;
      latest = std::max(latest, reduced_[replica][number - 1]);
    }
    return latest;
  }

  /// When the inputs of a pass are there; `never`: not yet known.
  double ready(const Action& action) const {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    const std::size_t own = place(chunk, action.micro_batch);
    switch (action.kind) {
      case ActionKind::forward:
        return chunk == 0 ? 0.0 : outputs_[own - micro_batches_];
      case ActionKind::backward:
      case ActionKind::backward_input:
        if (outputs_[own] == never) return never;
        return chunk + 1 == chunks_ ? 0.0 : gradients_[own + micro_batches_];
      case ActionKind::backward_weight:
        return gradients_[own] == never ? never : 0.0;
      default:
        return 0.0;
    }
  }

  /// When the result of a pass that ended now is there for chunk `consumer`, whose stage then goes on.
  double arrival(std::size_t stage, std::size_t consumer, int micro_batch) {
    const double now = state_[stage].now;
    if (consumer >= chunks_) return now;  // none: also before the first chunk
    const std::size_t to = stage_of_[place(consumer, micro_batch)];
    if (to == stage) return now;
    wake(to);
    double& free = link_free_[stage * schedules_.size() + to];
    free = std::max(free, now) + message_.seconds;
    return free + message_.alpha;
  }

  /// Plays a stage until an input is missing.
  void play(std::size_t stage) {
    State& state = state_[stage];
    Simulation::Stage& result = result_.stages[stage];
    for (const std::vector<Action>& actions = schedules_[stage].actions; state.next < actions.size();
         ++state.next) {
      const Action& action = actions[state.next];
      const bool is_update = action.kind == ActionKind::step && !reduced_[stage].empty();
      const double start = is_update ? summed(stage) : ready(action);
      if (start == never) return;
      const auto chunk = static_cast<std::size_t>(action.chunk);
      const double time = times_[chunk].of(action.kind);
      const double begin = std::max(start, state.now);
      state.now = begin + time;
      result.actions[state.next] = {begin, state.now};
      if (action.kind == ActionKind::reduce && !replicas_[stage].empty()) {
        reduced_[stage].push_back(begin);
        for (const std::size_t replica : replicas_[stage]) wake(replica);
      }
      result.busy += time;
      if (action.kind == ActionKind::forward) {
        outputs_[place(chunk, action.micro_batch)] = arrival(stage, chunk + 1, action.micro_batch);
        result.activations = std::max(result.activations, ++state.kept);
      } else if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input) {
        gradients_[place(chunk, action.micro_batch)] = arrival(stage, chunk - 1, action.micro_batch);
      }
      if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) --state.kept;
    }
  }

  std::span<const Schedule> schedules_;
  MessageTime message_;
  std::size_t chunks_ = 0;
  std::size_t micro_batches_ = 0;
  std::vector<PassTimes> times_;       // by chunk
  std::vector<std::size_t> stage_of_;  // by chunk and micro-batch
  std::vector<double> outputs_;        // by chunk and micro-batch: when the next chunk has it
  std::vector<double> gradients_;      // likewise: when the previous chunk has that of the chunk's input
  std::vector<std::vector<std::size_t>>
      replicas_;                              // by stage: of an asynchronous pipeline, all with its chunk
  std::vector<std::vector<double>> reduced_;  // by stage: times
  std::vector<double> link_free_;             // by sender and receiver
  std::vector<State> state_;                  // by stage
  std::vector<std::size_t> awake_;            // stages that may go on
  Simulation result_;
};

}  // namespace

Simulation simulate(std::span<const Schedule> stages, std::span<const PassTimes> times,
                    const MessageTime& message) {
  return Player(stages, times, message).play();
}

}  // namespace mylos
