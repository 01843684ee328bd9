// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/unit_events.hpp"

#include <vector>

#include "parallel/engine/activation_plan.hpp"

namespace mylos {

UnitEvents unit_events_of(const Schedule& schedule, const ModelPrograms& programs) {
  UnitEvents events;
  const auto of = [&](UnitSequence sequence) -> UnitEventList& {
    return events[static_cast<std::size_t>(sequence)];
  };
  const ScheduleExcerpt excerpt = excerpt_of(schedule);
  const Schedule& few = excerpt.schedule;
  const Repetition& repeated = excerpt.actions;
  int visits = 0;  // passes through blocks
  const auto add = [&](const Program& program, int micro_batch, bool is_last, UnitEventList& list) {
    int block = -1;
    for (const Entry& entry : program.entries) {
      if (entry.block != block) ++visits;
      block = entry.block;
      for (const UnitAccess& access : entry.acquires)
        list.events.emplace_back(UnitAcquisition{access, visits, micro_batch});
      for (const GradientRange& range : entry.completes)
        list.events.emplace_back(GradientCompletion{range, is_last});
    }
  };
  UnitEventList& step = of(UnitSequence::step);
  step.repeated.times = repeated.times;
  few.for_each_action(1, false, 1, [&](const Occurrence& occurrence) {
    const Action& action = few.actions[occurrence.index];
    if (occurrence.index == repeated.begin) step.repeated.begin = step.events.size();
    if (occurrence.index == repeated.end) step.repeated.end = step.events.size();
    if (!is_of_micro_batch(action.kind) || is_message(action.kind)) return;
    add(program_of(action, programs), action.micro_batch, few.is_last(occurrence.index), step);
  });
  add(programs.evaluate, -1, false, of(UnitSequence::evaluation));
  add(programs.generate, -1, false, of(UnitSequence::generation));
  return events;
}

}  // namespace mylos
