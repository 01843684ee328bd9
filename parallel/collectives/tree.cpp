// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/tree.hpp"

#include <algorithm>
#include <bit>

#include "parallel/collectives/algorithms.hpp"

namespace mylos {

namespace {

/// Bruck's algorithm. At the start, place i holds the part for the rank i places ahead. The step for each
/// power of two d moves the parts at places with bit d set to the same places of the rank d places ahead. At
/// the end, place i holds the part from the rank i places behind.
void bruck_all_to_all(ScheduleBuilder& builder, const RankOrder& order, BufferRange input,
                      BufferRange output) {
  const int size = order.size();
  const std::int64_t part = input.count / size;
  const auto place = [&](BufferRange vector, int i) { return vector.part(i * part, part); };
  const BufferRange rotated = builder.scratch(input.count);
  for (int i = 0; i < size; ++i) builder.copy(place(input, (order.index + i) % size), place(rotated, i));
  for (int distance = 1; distance < size; distance *= 2) {
    // At most half of the parts move, so the output has room for the departing and the arriving parts.
    std::vector<int> moving;
    for (int i = 0; i < size; ++i) {
      if ((i & distance) != 0) moving.push_back(i);
    }
    const int count = static_cast<int>(moving.size());
    for (int k = 0; k < count; ++k)
      builder.copy(place(rotated, moving[static_cast<std::size_t>(k)]), place(output, k));
    builder.exchange(order.rank((order.index + distance) % size), output.part(0, count * part),
                     order.rank((order.index - distance + size) % size),
                     output.part(count * part, count * part));
    for (int k = 0; k < count; ++k)
      builder.copy(place(output, count + k), place(rotated, moving[static_cast<std::size_t>(k)]));
  }
  for (int i = 0; i < size; ++i)
    builder.copy(place(rotated, i), place(output, (order.index - i + size) % size));
}

}  // namespace

BufferRange Tree::reduce(BufferRange own) const {
  for (std::size_t k = 0; k + 1 < cuts.size(); ++k)
    own = builder.receive_and_combine(order.rank(cuts[k]), own);
  if (!is_root()) builder.send(order.rank(parent), own);
  return own;
}

void Tree::broadcast(BufferRange vector) const {
  if (!is_root()) builder.receive(order.rank(parent), vector);
  for (std::size_t k = cuts.size() - 1; k-- > 0;) builder.send(order.rank(cuts[k]), vector);
}

void Tree::gather(BufferRange own, BufferRange vector) const {
  if (!is_leaf()) {
    builder.copy(own, order.part(vector, order.index));
    for (std::size_t k = 0; k + 1 < cuts.size(); ++k) builder.receive(order.rank(cuts[k]), below(k, vector));
    own = below(vector);
  }
  if (!is_root()) builder.send(order.rank(parent), own);
}

void Tree::scatter(BufferRange vector, BufferRange own) const {
  if (!is_root()) builder.receive(order.rank(parent), is_leaf() ? own : below(vector));
  for (std::size_t k = cuts.size() - 1; k-- > 0;) builder.send(order.rank(cuts[k]), below(k, vector));
  if (is_root() || !is_leaf()) builder.copy(order.part(vector, order.index), own);
}

void Tree::add(const CollectiveCall& call) const {
  const BufferRange input = input_of(call);
  const BufferRange output = output_of(call);
  switch (call.operation) {
    case CommOperation::all_reduce:
      reduce(output);
      broadcast(output);
      break;
    case CommOperation::reduce_scatter:
      // A rank that forwards parts has children, so `reduce` left its result in scratch, which may be
      // overwritten.
      scatter(reduce(input), output);
      break;
    case CommOperation::all_gather: {
      const BufferRange own = order.part(output, order.index);
      builder.copy(input, own);
      gather(own, output);
      broadcast(output);
      break;
    }
    case CommOperation::broadcast:
      broadcast(output);
      break;
    default:
      reduce(is_root() ? output : input);
  }
}

Tree binomial_tree(ScheduleBuilder& builder, const RankOrder& order) {
  const int i = order.index;
  const int reach = i > 0 ? i & -i : static_cast<int>(std::bit_ceil(static_cast<unsigned>(order.size())));
  Tree tree{builder, order, i > 0 ? i - reach : -1, {}};
  for (int distance = 1; distance < reach && i + distance < order.size(); distance *= 2)
    tree.cuts.push_back(i + distance);
  tree.cuts.push_back(std::min(i + reach, order.size()));
  return tree;
}

void add_tree(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order) {
  if (call.operation == CommOperation::all_to_all) {
    bruck_all_to_all(builder, order, input_of(call), output_of(call));
  } else {
    binomial_tree(builder, order).add(call);
  }
}

}  // namespace mylos
