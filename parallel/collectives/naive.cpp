// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/algorithms.hpp"

namespace mylos {

namespace {

/// Returns the result at the master, `own` elsewhere.
BufferRange reduce_at_master(ScheduleBuilder& builder, const RankOrder& team, BufferRange own) {
  if (team.index > 0) builder.send(team.rank(0), own);
  for (int i = 1; team.index == 0 && i < team.size(); ++i)
    own = builder.receive_and_combine(team.rank(i), own);
  return own;
}

void broadcast_from_master(ScheduleBuilder& builder, const RankOrder& team, BufferRange vector) {
  if (team.index > 0) builder.receive(team.rank(0), vector);
  for (int i = 1; team.index == 0 && i < team.size(); ++i) builder.send(team.rank(i), vector);
}

void gather_at_master(ScheduleBuilder& builder, const RankOrder& team, BufferRange vector) {
  if (team.index > 0) builder.send(team.rank(0), team.part(vector, team.index));
  for (int i = 1; team.index == 0 && i < team.size(); ++i)
    builder.receive(team.rank(i), team.part(vector, i));
}

/// Only the master uses `vector`.
void scatter_from_master(ScheduleBuilder& builder, const RankOrder& team, BufferRange vector,
                         BufferRange own) {
  if (team.index > 0) {
    builder.receive(team.rank(0), own);
    return;
  }
  builder.copy(team.part(vector, 0), own);
  for (int i = 1; i < team.size(); ++i) builder.send(team.rank(i), team.part(vector, i));
}

void all_to_all_through_master(ScheduleBuilder& builder, const RankOrder& team, BufferRange input,
                               BufferRange output) {
  if (team.index > 0) {
    for (int target = 0; target < team.size(); ++target) {
      builder.send(team.rank(0), team.part(input, target));
      if (target == team.index) builder.receive(team.rank(0), output);
    }
    return;
  }
  const BufferRange staged = team.size() > 1 ? builder.scratch(input.count) : output;
  for (int target = 0; target < team.size(); ++target) {
    const BufferRange collected = target == 0 ? output : staged;
    builder.copy(team.part(input, target), team.part(collected, 0));
    for (int i = 1; i < team.size(); ++i) builder.receive(team.rank(i), team.part(collected, i));
    if (target > 0) builder.send(team.rank(target), collected);
  }
}

}  // namespace

void add_naive(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& team) {
  const BufferRange input = input_of(call);
  const BufferRange output = output_of(call);
  switch (call.operation) {
    case CommOperation::all_reduce:
      reduce_at_master(builder, team, output);
      broadcast_from_master(builder, team, output);
      break;
    case CommOperation::reduce_scatter:
      scatter_from_master(builder, team, reduce_at_master(builder, team, input), output);
      break;
    case CommOperation::all_gather:
      builder.copy(input, team.part(output, team.index));
      gather_at_master(builder, team, output);
      broadcast_from_master(builder, team, output);
      break;
    case CommOperation::broadcast:
      broadcast_from_master(builder, team, output);
      break;
    case CommOperation::reduce:
      reduce_at_master(builder, team, team.index == 0 ? output : input);
      break;
    default:
      all_to_all_through_master(builder, team, input, output);
  }
}

}  // namespace mylos
