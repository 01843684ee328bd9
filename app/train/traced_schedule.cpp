// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/traced_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "parallel/schedule/schedule.hpp"
#include "parallel/schedule/simulation.hpp"

namespace mylos {

namespace {

constexpr std::size_t most_rows = 32;     // of ranks, and of stages
constexpr std::size_t most_spans = 2500;  // of the ranks, and of the simulation

WorkKind work_of(ActionKind kind) {
  if (kind == ActionKind::backward) return WorkKind::backward;
  if (kind == ActionKind::backward_input) return WorkKind::backward_input;
  return kind == ActionKind::backward_weight ? WorkKind::backward_weight : WorkKind::forward;
}

WorkKind work_of(const TraceEvent& phase) {
  for (const ActionKind pass :
       {ActionKind::forward, ActionKind::backward, ActionKind::backward_input, ActionKind::backward_weight}) {
    if (phase.name == name_of(pass)) return work_of(pass);
  }
  if (phase.name == "optimizer") return WorkKind::update;
  const bool is_message = phase.micro_batch >= 0;
  return phase.name == "communication" && !is_message ? WorkKind::reduce : WorkKind::other;
}

bool is_wait(const TraceEvent& event) {
  return event.kind == TraceKind::communication && (event.name.ends_with(" wait") || event.name == "barrier");
}

/// Collects the phases of a rank, in order.
class RowOfPhases {
 public:
  RowOfPhases(int rank, int stage, std::int64_t end) : least_(end / 500) {
    row_.stage = stage;
    row_.rank = rank;
    row_.end = end;
  }

  void add(const TraceEvent& phase, std::span<const TraceEvent* const> own_waits) {
    const WorkKind kind = work_of(phase);
    std::int64_t work = phase.end - phase.begin;
    for (const TraceEvent* wait : own_waits) work -= wait->end - wait->begin;
    row_.busy += work;
    if (is_pass(kind)) ++row_.passes;
    // What is too short to be seen is no piece of its own.
    const std::int64_t least = is_pass(kind) ? work / 50 : least_;
    std::int64_t begin = phase.begin;
    for (const TraceEvent* wait : own_waits) {
      if (wait->end - wait->begin < least_) continue;
      add(kind, phase, begin, wait->begin, least);
      row_.spans.push_back({.kind = WorkKind::wait, .begin = wait->begin, .end = wait->end});
      begin = wait->end;
    }
    add(kind, phase, begin, phase.end, least);
  }

  DiagramRow take() { return std::move(row_); }

 private:
  void add(WorkKind kind, const TraceEvent& phase, std::int64_t begin, std::int64_t end, std::int64_t least) {
    if (end - begin < least) return;
    const bool names_pass = is_pass(kind);
    row_.spans.push_back({.kind = kind,
                          .micro_batch = names_pass ? phase.micro_batch : -1,
                          .chunk = names_pass ? phase.chunk : -1,
                          .begin = begin,
                          .end = end});
  }

  DiagramRow row_;
  std::int64_t least_;  // nanoseconds
};

std::int64_t nanoseconds(double seconds) {
  return std::llround(1e9 * seconds);
}

DiagramRow simulated_row(const Schedule& schedule, const Simulation::Stage& played, int stage) {
  DiagramRow row{.stage = stage, .busy = nanoseconds(played.busy), .spans = {}};
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    if (action.kind != ActionKind::forward && !is_backward(action.kind)) continue;
    ++row.passes;
    row.spans.push_back({.kind = work_of(action.kind),
                         .micro_batch = action.micro_batch,
                         .chunk = action.chunk,
                         .begin = nanoseconds(played.actions[i].begin),
                         .end = nanoseconds(played.actions[i].end)});
    row.end = std::max(row.end, row.spans.back().end);
  }
  return row;
}

/// The time of a message: those of all chunks are equally large.
MessageTime message_time(const RunConfig& config, const std::vector<UnitCost>& units) {
  const std::optional<LinkModel>& link = config.comm.simulated_link;
  if (!link) return {};
  const auto bits = 8.0 * static_cast<double>(units.front().output_bytes);
  return {.alpha = link->latency, .seconds = 1e-9 * bits / link->gigabits_per_second};
}

/// Sets which version of the weights each pass of the traced step uses.
void set_versions(const RunConfig& config, StepDiagram& diagram) {
  const ScheduleScope scope = config.parallel.scope(config.train.accumulation);
  const std::vector<VersionRule> rules = config.parallel.schedule->rules(scope);
  const std::int64_t first = (config.profile_step - 1) * scope.micro_batches;
  for (std::vector<DiagramRow>* rows : {&diagram.simulation, &diagram.ranks}) {
    for (DiagramRow& row : *rows) {
      for (WorkSpan& span : row.spans) {
        if (is_pass(span.kind))
          span.version = rules[static_cast<std::size_t>(span.chunk)].version_of(first + span.micro_batch);
      }
    }
  }
}

}  // namespace

DiagramRow traced_row(std::span<const TraceEvent> events, int rank, int stage) {
  std::int64_t end = 0;
  for (const TraceEvent& event : events) end = std::max(end, event.end);
  RowOfPhases row(rank, stage, end);
  // An event is listed when it ends, and a phase ends after what it contains.
  std::vector<const TraceEvent*> waits;
  for (const TraceEvent& event : events) {
    if (is_wait(event)) waits.push_back(&event);
    if (event.kind != TraceKind::phase || event.name == whole_step) continue;
    std::erase_if(waits, [&](const TraceEvent* wait) { return wait->begin < event.begin; });
    row.add(event, waits);
    waits.clear();
  }
  return row.take();
}

StepDiagram diagram_of(const RunConfig& config, const std::vector<UnitCost>& units,
                       std::span<const std::string> rows) {
  StepDiagram diagram{.num_ranks = static_cast<int>(rows.size()),
                      .num_stages = static_cast<int>(config.parallel.pipeline),
                      .simulation = {},
                      .ranks = {}};
  const std::vector<Schedule> schedules =
      unrolled(config.parallel.schedules(config.train.accumulation, config.model.tied), 1);
  const Simulation played =
      simulate(schedules, pass_times(units, config.cuts()), message_time(config, units));
  for (std::size_t stage = 0; stage < std::min(schedules.size(), most_rows); ++stage) {
    // Of replicas, several lists are of one stage.
    const bool has_replicas = !schedules[stage].rules.empty() && schedules.size() > 1;
    const int number = has_replicas ? *schedules[stage].held_chunks().begin() : static_cast<int>(stage);
    diagram.simulation.push_back(simulated_row(schedules[stage], played.stages[stage], number));
  }
  // Stages are the slowest axis of the grid: the ranks of a stage follow one another.
  int previous = -1;
  for (const std::string& text : rows) {
    DiagramRow row = parse_diagram_row(Json::parse(text));
    const bool is_first = row.stage != std::exchange(previous, row.stage);
    if (diagram.ranks.size() < most_rows && (rows.size() <= most_rows || is_first))
      diagram.ranks.push_back(std::move(row));
  }
  if (config.parallel.schedule->is_asynchronous()) set_versions(config, diagram);
  diagram.finish(most_spans);
  return diagram;
}

}  // namespace mylos
