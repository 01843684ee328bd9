// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/algorithms.hpp"

namespace mylos {

namespace {

/// Returns the result at the master (the first rank of the order), `own` elsewhere.
BufferRange reduce_at_master(ScheduleBuilder& builder, const RankOrder& order, BufferRange own) {
  if (order.index > 0) builder.send(order.rank(0), own);
  for (int i = 1; order.index == 0 && i < order.size(); ++i)
    own = builder.receive_and_combine(order.rank(i), own);
  return own;
}

void broadcast_from_master(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector) {
  if (order.index > 0) builder.receive(order.rank(0), vector);
  for (int i = 1; order.index == 0 && i < order.size(); ++i) builder.send(order.rank(i), vector);
}

void gather_at_master(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector) {
  if (order.index > 0) builder.send(order.rank(0), order.part(vector, order.index));
  for (int i = 1; order.index == 0 && i < order.size(); ++i)
    builder.receive(order.rank(i), order.part(vector, i));
}

/// Only the master uses `vector`.
void scatter_from_master(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector,
                         BufferRange own) {
  if (order.index > 0) {
    builder.receive(order.rank(0), own);
    return;
  }
  builder.copy(order.part(vector, 0), own);
  for (int i = 1; i < order.size(); ++i) builder.send(order.rank(i), order.part(vector, i));
}

void all_to_all_through_master(ScheduleBuilder& builder, const RankOrder& order, BufferRange input,
                               BufferRange output) {
  if (order.index > 0) {
    for (int target = 0; target < order.size(); ++target) {
      builder.send(order.rank(0), order.part(input, target));
      if (target == order.index) builder.receive(order.rank(0), output);
    }
    return;
  }
  const BufferRange staged = order.size() > 1 ? builder.scratch(input.count) : output;
  for (int target = 0; target < order.size(); ++target) {
    const BufferRange collected = target == 0 ? output : staged;
    builder.copy(order.part(input, target), order.part(collected, 0));
    for (int i = 1; i < order.size(); ++i) builder.receive(order.rank(i), order.part(collected, i));
    if (target > 0) builder.send(order.rank(target), collected);
  }
}

}  // namespace

void add_naive(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order) {
  const BufferRange input = input_of(call);
  const BufferRange output = output_of(call);
  switch (call.operation) {
    case CommOperation::all_reduce:
      reduce_at_master(builder, order, output);
      broadcast_from_master(builder, order, output);
      break;
    case CommOperation::reduce_scatter:
      scatter_from_master(builder, order, reduce_at_master(builder, order, input), output);
      break;
    case CommOperation::all_gather:
      builder.copy(input, order.part(output, order.index));
      gather_at_master(builder, order, output);
      broadcast_from_master(builder, order, output);
      break;
    case CommOperation::broadcast:
      broadcast_from_master(builder, order, output);
      break;
    case CommOperation::reduce:
      reduce_at_master(builder, order, order.index == 0 ? output : input);
      break;
    default:
      all_to_all_through_master(builder, order, input, output);
  }
}

}  // namespace mylos
