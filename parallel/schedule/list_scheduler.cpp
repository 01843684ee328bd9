// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/list_scheduler.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <queue>
#include <utility>

namespace mylos {

namespace {

using enum ActionKind;

/// Times that differ by less than this part of a duration are equal: sums are rounded.
constexpr double tolerance = 1e-9;

/// What does not change from one play to the next.
struct Pipeline {
  int micro_batches = 1;
  std::vector<int> stages;               // by chunk
  std::vector<std::vector<int>> chunks;  // by stage, in order of the model
  std::vector<PassTimes> times;          // by chunk

  Pipeline(const ScheduleScope& scope, std::span<const int> stages_of_chunks)
      : micro_batches(scope.micro_batches),
        stages(stages_of_chunks.begin(), stages_of_chunks.end()),
        chunks(static_cast<std::size_t>(scope.stages)) {
    for (int chunk = 0; chunk < num_chunks(); ++chunk) {
      chunks[static_cast<std::size_t>(stage_of(chunk))].push_back(chunk);
      times.push_back(scope.times_of(chunk));
    }
  }

  int num_chunks() const { return static_cast<int>(stages.size()); }
  int stage_of(int chunk) const { return stages[static_cast<std::size_t>(chunk)]; }
  const PassTimes& times_of(int chunk) const { return times[static_cast<std::size_t>(chunk)]; }
  double longest_pass() const;
  /// No step is shorter: the time until the busiest stage can begin, and its passes.
  double shortest_step() const;
};

double Pipeline::longest_pass() const {
  double longest = 0.0;
  for (const PassTimes& time : times) longest = std::max({longest, time.forward, time.input, time.weight});
  return longest;
}

double Pipeline::shortest_step() const {
  double shortest = 0.0;
  for (const std::vector<int>& held : chunks) {
    double time = 0.0;
    for (int chunk = 0; chunk < held.front(); ++chunk) time += times_of(chunk).forward;
    for (const int chunk : held) {
      time += micro_batches * (times_of(chunk).forward + times_of(chunk).backward());
    }
    shortest = std::max(shortest, time);
  }
  return shortest;
}

/// Plays a step: a clock for all stages, each of which runs one pass at a time.
class Play {
 public:
  Play(const Pipeline& pipeline, const PassOrder& order, int in_flight)
      : pipeline_(pipeline),
        order_(order),
        in_flight_(in_flight),
        done_(pipeline.stages.size()),
        stages_(pipeline.chunks.size()) {}

  void run();

  double makespan() const { return now_; }
  /// The most activations that a stage keeps.
  int most_kept() const;
  std::vector<std::vector<Action>> take_passes();

 private:
  struct Stage {
    std::optional<Action> running;
    int kept = 0;  // activations
    int most_kept = 0;
    std::vector<Action> passes;
  };

  /// The number of micro-batches whose pass of the kind through the chunk has ended.
  int done(ActionKind kind, int chunk) const {
    return done_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(kind)];
  }
  /// Whether the inputs of the next such pass exist, and memory for its results.
  bool can_begin(ActionKind kind, int chunk, std::span<const int> later_chunks) const;
  bool has_room(int chunk, std::span<const int> later_chunks) const;
  /// Lets a stage that is free take its most urgent pass.
  void begin_next(int index);
  void begin(int index, ActionKind kind, int chunk);
  void end_pass(Stage& stage);

  const Pipeline& pipeline_;
  const PassOrder& order_;
  const int in_flight_;                                  // micro-batches
  std::vector<std::array<int, num_action_kinds>> done_;  // by chunk
  std::vector<Stage> stages_;
  using End = std::pair<double, int>;  // time, stage
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  double now_ = 0.0;
};

void Play::run() {
  const double same_time = tolerance * pipeline_.longest_pass();
  const int num_stages = static_cast<int>(stages_.size());
  for (int stage = 0; stage < num_stages; ++stage) begin_next(stage);
  std::vector<int> may_begin;
  while (!ends_.empty()) {
    // All passes that end at one time end before any begins.
    const double first = ends_.top().first;
    may_begin.clear();
    while (!ends_.empty() && ends_.top().first <= first + same_time) {
      const auto [time, index] = ends_.top();
      ends_.pop();
      now_ = time;
      Stage& stage = stages_[static_cast<std::size_t>(index)];
      const Action ended = *stage.running;
      end_pass(stage);
      may_begin.push_back(index);
      const int next = ended.kind == forward ? ended.chunk + 1 : ended.chunk - 1;
      const bool is_awaited = ended.kind != backward_weight && next >= 0 && next < pipeline_.num_chunks();
      if (is_awaited) may_begin.push_back(pipeline_.stage_of(next));
    }
    for (const int stage : may_begin) begin_next(stage);
  }
}

void Play::begin_next(int index) {
  if (stages_[static_cast<std::size_t>(index)].running) return;
  const std::span<const int> chunks = pipeline_.chunks[static_cast<std::size_t>(index)];
  const auto begins = [&](ActionKind kind, std::size_t place) {
    if (!can_begin(kind, chunks[place], chunks.subspan(place + 1))) return false;
    begin(index, kind, chunks[place]);
    return true;
  };
  for (const StagePass& pass : order_) {
    if (begins(pass.kind, static_cast<std::size_t>(pass.place))) return;
  }
  for (std::size_t place = 0; place < chunks.size(); ++place) {
    if (begins(backward_weight, place)) return;
  }
}

void Play::begin(int index, ActionKind kind, int chunk) {
  Stage& stage = stages_[static_cast<std::size_t>(index)];
  stage.running = Action{kind, done(kind, chunk), chunk};
  stage.passes.push_back(*stage.running);
  if (kind == forward) stage.most_kept = std::max(stage.most_kept, ++stage.kept);
  ends_.emplace(now_ + pipeline_.times_of(chunk).of(kind), index);
}

void Play::end_pass(Stage& stage) {
  const Action& pass = *stage.running;
  ++done_[static_cast<std::size_t>(pass.chunk)][static_cast<std::size_t>(pass.kind)];
  if (pass.kind == backward_weight) --stage.kept;
  stage.running.reset();
}

bool Play::can_begin(ActionKind kind, int chunk, std::span<const int> later_chunks) const {
  const int micro_batch = done(kind, chunk);
  if (micro_batch == pipeline_.micro_batches) return false;
  const auto is_done = [&](ActionKind earlier, int other) { return done(earlier, other) > micro_batch; };
  if (kind == forward) return (chunk == 0 || is_done(forward, chunk - 1)) && has_room(chunk, later_chunks);
  if (kind == backward_input) {
    return is_done(forward, chunk) &&
           (chunk + 1 == pipeline_.num_chunks() || is_done(backward_input, chunk + 1));
  }
  return is_done(backward_input, chunk) &&
         (later_chunks.empty() || is_done(backward_weight, later_chunks.front()));
}

bool Play::has_room(int chunk, std::span<const int> later_chunks) const {
  const auto index = static_cast<std::size_t>(pipeline_.stage_of(chunk));
  const int limit = in_flight_ * static_cast<int>(pipeline_.chunks[index].size());
  // Without room for the later chunks the oldest micro-batch could not go on.
  const int needed = 1 + static_cast<int>(later_chunks.size());
  // As in 1F1B, the later the chunk, the sooner a gradient comes back; more passes would only take memory
  // from deferred weight gradients.
  const int lead = done(forward, chunk) - done(backward_input, chunk);
  return stages_[index].kept + needed <= limit && lead < std::max(1, limit - chunk);
}

int Play::most_kept() const {
  return std::ranges::max_element(stages_, {}, &Stage::most_kept)->most_kept;
}

std::vector<std::vector<Action>> Play::take_passes() {
  std::vector<std::vector<Action>> passes;
  for (Stage& stage : stages_) passes.push_back(std::move(stage.passes));
  return passes;
}

}  // namespace

std::vector<Schedule> schedule_passes(const ScheduleScope& scope, std::span<const int> stages,
                                      std::span<const PassOrder> orders) {
  const Pipeline pipeline(scope, stages);
  const double shortest = pipeline.shortest_step();
  const int in_flight = scope.in_flight == 0 ? scope.stages : scope.in_flight;
  const int fewest = std::min(in_flight, scope.stages);
  std::optional<Play> best;
  const auto is_better = [&](const Play& play) {
    if (!best) return true;
    const double gained = best->makespan() - play.makespan();
    const double least = tolerance * best->makespan();
    return gained > least || (gained > -least && play.most_kept() < best->most_kept());
  };
  const auto is_shortest = [&] { return best && best->makespan() <= shortest * (1.0 + tolerance); };
  // The limits are 1, 1 1/4, 1 1/2, 1 3/4, 2, 4, 8 and so on times the smallest.
  for (int quarters = 4; fewest * quarters / 4 <= in_flight && !is_shortest();
       quarters += quarters < 8 ? 1 : quarters) {
    const int limit = fewest * quarters / 4;
    for (const PassOrder& order : orders) {
      Play play(pipeline, order, limit);
      play.run();
      if (is_better(play)) best.emplace(std::move(play));
    }
    if (limit >= scope.micro_batches) break;
  }

  std::vector<Schedule> schedules;
  for (std::vector<Action>& passes : best->take_passes()) {
    passes.push_back({reduce});
    passes.push_back({step});
    schedules.push_back({.actions = std::move(passes),
                         .micro_batches = scope.micro_batches,
                         .chunks = pipeline.num_chunks()});
  }
  return schedules;
}

}  // namespace mylos
