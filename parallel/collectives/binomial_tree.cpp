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

/// The distance to the parent; at the root, the end of the tree.
int reach(const RankOrder& team) {
  return team.index == 0 ? ceil_to_power_of_two(team.size()) : team.index & -team.index;
}

/// The end of the subtree of rank i, whose reach is given.
int subtree_end(const RankOrder& team, int i, int reach_of_i) {
  return std::min(i + reach_of_i, team.size());
}

bool is_leaf(const RankOrder& team) {
  return subtree_end(team, team.index, reach(team)) == team.index + 1;
}

/// Bruck's algorithm: place i holds the part for the rank i places ahead; the part moves by the bits of i.
void bruck_all_to_all(ScheduleBuilder& builder, const RankOrder& team, BufferRange input,
                      BufferRange output) {
  const int size = team.size();
  const std::int64_t part = input.count / size;
  const auto place = [&](BufferRange vector, int i) { return vector.part(i * part, part); };
  const BufferRange rotated = builder.scratch(input.count);
  for (int i = 0; i < size; ++i) builder.copy(place(input, (team.index + i) % size), place(rotated, i));
  for (int distance = 1; distance < size; distance *= 2) {
    // At most half of the places move, so the output has room for both the leaving and the arriving parts.
    std::vector<int> moving;
    for (int i = 0; i < size; ++i) {
      if ((i & distance) != 0) moving.push_back(i);
    }
    const int count = static_cast<int>(moving.size());
    for (int k = 0; k < count; ++k)
      builder.copy(place(rotated, moving[static_cast<std::size_t>(k)]), place(output, k));
    builder.exchange(team.rank((team.index + distance) % size), output.part(0, count * part),
                     team.rank((team.index - distance + size) % size),
                     output.part(count * part, count * part));
    for (int k = 0; k < count; ++k)
      builder.copy(place(output, count + k), place(rotated, moving[static_cast<std::size_t>(k)]));
  }
  for (int i = 0; i < size; ++i)
    builder.copy(place(rotated, i), place(output, (team.index - i + size) % size));
}

}  // namespace

BufferRange tree_reduce(ScheduleBuilder& builder, const RankOrder& team, BufferRange own) {
  for (int distance = 1; distance < reach(team); distance *= 2) {
    if (team.index + distance < team.size())
      own = builder.receive_and_combine(team.rank(team.index + distance), own);
  }
  if (team.index > 0) builder.send(team.rank(team.index - reach(team)), own);
  return own;
}

void tree_broadcast(ScheduleBuilder& builder, const RankOrder& team, BufferRange vector) {
  if (team.index > 0) builder.receive(team.rank(team.index - reach(team)), vector);
  for (int distance = reach(team) / 2; distance > 0; distance /= 2) {
    if (team.index + distance < team.size()) builder.send(team.rank(team.index + distance), vector);
  }
}

void tree_gather(ScheduleBuilder& builder, const RankOrder& team, BufferRange own, BufferRange vector) {
  if (is_leaf(team)) {
    if (team.index > 0) builder.send(team.rank(team.index - reach(team)), own);
    return;
  }
  builder.copy(own, team.part(vector, team.index));
  for (int distance = 1; distance < reach(team); distance *= 2) {
    const int child = team.index + distance;
    if (child < team.size())
      builder.receive(team.rank(child), team.parts(vector, child, subtree_end(team, child, distance)));
  }
  if (team.index > 0) {
    builder.send(team.rank(team.index - reach(team)),
                 team.parts(vector, team.index, subtree_end(team, team.index, reach(team))));
  }
}

void tree_scatter(ScheduleBuilder& builder, const RankOrder& team, BufferRange vector, BufferRange own) {
  if (team.index > 0) {
    builder.receive(
        team.rank(team.index - reach(team)),
        is_leaf(team) ? own : team.parts(vector, team.index, subtree_end(team, team.index, reach(team))));
    if (is_leaf(team)) return;
  }
  for (int distance = reach(team) / 2; distance > 0; distance /= 2) {
    const int child = team.index + distance;
    if (child < team.size())
      builder.send(team.rank(child), team.parts(vector, child, subtree_end(team, child, distance)));
  }
  builder.copy(team.part(vector, team.index), own);
}

void add_tree(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& team) {
  const BufferRange input = input_of(call);
  const BufferRange output = output_of(call);
  switch (call.operation) {
    case CommOperation::all_reduce:
      tree_reduce(builder, team, output);
      tree_broadcast(builder, team, output);
      break;
    case CommOperation::reduce_scatter:
      // A rank that passes parts on has combined before, so its result lies in scratch.
      tree_scatter(builder, team, tree_reduce(builder, team, input), output);
      break;
    case CommOperation::all_gather: {
      const BufferRange own = team.part(output, team.index);
      builder.copy(input, own);
      tree_gather(builder, team, own, output);
      tree_broadcast(builder, team, output);
      break;
    }
    case CommOperation::broadcast:
      tree_broadcast(builder, team, output);
      break;
    case CommOperation::reduce:
      tree_reduce(builder, team, team.index == 0 ? output : input);
      break;
    default:
      bruck_all_to_all(builder, team, input, output);
  }
}

}  // namespace mylos
