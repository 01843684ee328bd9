// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/binomial_tree.hpp"

#include <algorithm>
#include <bit>

#include "parallel/collectives/algorithms.hpp"

namespace mylos {

namespace {

int ceil_to_power_of_two(int value) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(value)));
}

/// The distance to the parent; at the root, the number of ranks rounded up to a power of two.
int reach(const RankOrder& order) {
  return order.index == 0 ? ceil_to_power_of_two(order.size()) : order.index & -order.index;
}

/// The end of the subtree of rank i, given the reach of that rank.
int subtree_end(const RankOrder& order, int i, int reach_of_i) {
  return std::min(i + reach_of_i, order.size());
}

bool is_leaf(const RankOrder& order) {
  return subtree_end(order, order.index, reach(order)) == order.index + 1;
}

/// Bruck's algorithm: place i holds the part for the rank i places ahead. For each bit that is set in i, the
/// part moves ahead by the value of the bit.
void bruck_all_to_all(ScheduleBuilder& builder, const RankOrder& order, BufferRange input,
                      BufferRange output) {
  const int size = order.size();
  const std::int64_t part = input.count / size;
  const auto place = [&](BufferRange vector, int i) { return vector.part(i * part, part); };
  const BufferRange rotated = builder.scratch(input.count);
  for (int i = 0; i < size; ++i) builder.copy(place(input, (order.index + i) % size), place(rotated, i));
  for (int distance = 1; distance < size; distance *= 2) {
    // At most half of the places move, so the output has room for both the leaving and the arriving parts.
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

BufferRange tree_reduce(ScheduleBuilder& builder, const RankOrder& order, BufferRange own) {
  for (int distance = 1; distance < reach(order); distance *= 2) {
    if (order.index + distance < order.size())
      own = builder.receive_and_combine(order.rank(order.index + distance), own);
  }
  if (order.index > 0) builder.send(order.rank(order.index - reach(order)), own);
  return own;
}

void tree_broadcast(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector) {
  if (order.index > 0) builder.receive(order.rank(order.index - reach(order)), vector);
  for (int distance = reach(order) / 2; distance > 0; distance /= 2) {
    if (order.index + distance < order.size()) builder.send(order.rank(order.index + distance), vector);
  }
}

void tree_gather(ScheduleBuilder& builder, const RankOrder& order, BufferRange own, BufferRange vector) {
  if (is_leaf(order)) {
    if (order.index > 0) builder.send(order.rank(order.index - reach(order)), own);
    return;
  }
  builder.copy(own, order.part(vector, order.index));
  for (int distance = 1; distance < reach(order); distance *= 2) {
    const int child = order.index + distance;
    if (child < order.size())
      builder.receive(order.rank(child), order.parts(vector, child, subtree_end(order, child, distance)));
  }
  if (order.index > 0) {
    builder.send(order.rank(order.index - reach(order)),
                 order.parts(vector, order.index, subtree_end(order, order.index, reach(order))));
  }
}

void tree_scatter(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector, BufferRange own) {
  if (order.index > 0) {
    builder.receive(order.rank(order.index - reach(order)),
                    is_leaf(order)
                        ? own
                        : order.parts(vector, order.index, subtree_end(order, order.index, reach(order))));
    if (is_leaf(order)) return;
  }
  for (int distance = reach(order) / 2; distance > 0; distance /= 2) {
    const int child = order.index + distance;
    if (child < order.size())
      builder.send(order.rank(child), order.parts(vector, child, subtree_end(order, child, distance)));
  }
  builder.copy(order.part(vector, order.index), own);
}

void add_tree(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order) {
  const BufferRange input = input_of(call);
  const BufferRange output = output_of(call);
  switch (call.operation) {
    case CommOperation::all_reduce:
      tree_reduce(builder, order, output);
      tree_broadcast(builder, order, output);
      break;
    case CommOperation::reduce_scatter:
      // A rank that passes parts on has first combined its children's vectors, so its result lies in scratch.
      tree_scatter(builder, order, tree_reduce(builder, order, input), output);
      break;
    case CommOperation::all_gather: {
      const BufferRange own = order.part(output, order.index);
      builder.copy(input, own);
      tree_gather(builder, order, own, output);
      tree_broadcast(builder, order, output);
      break;
    }
    case CommOperation::broadcast:
      tree_broadcast(builder, order, output);
      break;
    case CommOperation::reduce:
      tree_reduce(builder, order, order.index == 0 ? output : input);
      break;
    default:
      bruck_all_to_all(builder, order, input, output);
  }
}

}  // namespace mylos
