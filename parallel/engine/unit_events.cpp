// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/unit_events.hpp"

#include <vector>

#include "parallel/engine/activation_plan.hpp"

namespace mylos {

namespace {

/// A pass of a micro-batch through a program.
struct ProgramPass {
  const Program& program;
  int micro_batch = -1;
  bool is_last = false;  ///< the last pass that contributes to its gradients
};

/// Appends the events of a pass; `visits` counts the passes through blocks.
void add(const ProgramPass& pass, int& visits, std::vector<UnitEvent>& events) {
  int block = -1;
  for (const Entry& entry : pass.program.entries) {
    if (entry.block != block) ++visits;
    block = entry.block;
    for (const UnitAccess& access : entry.acquires)
      events.emplace_back(UnitAcquisition{access, visits, pass.micro_batch});
    for (const GradientRange& range : entry.completes)
      events.emplace_back(GradientCompletion{range, pass.is_last});
  }
}

}  // namespace

UnitEvents unit_events_of(const Schedule& schedule, const ModelPrograms& programs) {
  UnitEvents events;
  const auto of = [&](UnitSequence sequence) -> UnitEventList& {
    return events[static_cast<std::size_t>(sequence)];
  };
  const ScheduleExcerpt excerpt = excerpt_of(schedule);
  const Schedule& few = excerpt.schedule;
  const Repetition& repeated = excerpt.actions;
  UnitEventList& step = of(UnitSequence::step);
  step.repeated.times = repeated.times;
  int visits = 0;
  few.for_each_action(1, false, 1, [&](const Occurrence& occurrence) {
    const Action& action = few.actions[occurrence.index];
    if (occurrence.index == repeated.begin) step.repeated.begin = step.events.size();
    if (occurrence.index == repeated.end) step.repeated.end = step.events.size();
    if (!is_of_micro_batch(action.kind) || is_message(action.kind)) return;
    add({program_of(action, programs), action.micro_batch, few.is_last(occurrence.index)}, visits,
        step.events);
  });
  add({programs.evaluate}, visits, of(UnitSequence::evaluation).events);
  add({programs.generate}, visits, of(UnitSequence::generation).events);
  return events;
}

}  // namespace mylos
