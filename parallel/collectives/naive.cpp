// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/algorithms.hpp"
#include "parallel/collectives/tree.hpp"

namespace mylos {

namespace {

/// The first rank of the order is the parent of all others.
Tree star(ScheduleBuilder& builder, const RankOrder& order) {
  Tree tree{builder, order, order.index > 0 ? 0 : -1, {}};
  const int end = order.index > 0 ? order.index + 1 : order.size();
  for (int i = order.index + 1; i <= end; ++i) tree.cuts.push_back(i);
  return tree;
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
  if (call.operation == CommOperation::all_to_all) {
    all_to_all_through_master(builder, order, input_of(call), output_of(call));
  } else {
    star(builder, order).add(call);
  }
}

}  // namespace mylos
