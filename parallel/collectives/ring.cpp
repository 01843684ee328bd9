// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "parallel/collectives/algorithms.hpp"

namespace mylos {

namespace {

/// The neighbour `distance` places ahead; a negative distance counts backwards.
int neighbour(const RankOrder& team, int distance) {
  return ((team.index + distance) % team.size() + team.size()) % team.size();
}

std::int64_t largest_part(const RankOrder& team) {
  std::int64_t largest = 0;
  for (std::size_t i = 0; i + 1 < team.first.size(); ++i)
    largest = std::max(largest, team.first[i + 1] - team.first[i]);
  return largest;
}

/// Partial sums travel towards their owner. Returns the place of this rank's own complete part. Two slots of
/// scratch suffice: one sum leaves while the next arrives.
BufferRange ring_reduce_scatter(ScheduleBuilder& builder, const RankOrder& team, BufferRange own) {
  if (team.size() == 1) return own;
  const std::int64_t slot_count = largest_part(team);
  BufferRange leaving = team.part(own, neighbour(team, -1));
  BufferRange slots[2] = {builder.scratch(slot_count), builder.scratch(slot_count)};
  for (int step = 0; step + 1 < team.size(); ++step) {
    const BufferRange addend = team.part(own, neighbour(team, -step - 2));
    const BufferRange arriving = slots[step % 2].part(0, addend.count);
    builder.exchange(team.rank(neighbour(team, 1)), leaving, team.rank(neighbour(team, -1)), arriving);
    builder.combine(addend, arriving);
    leaving = arriving;
  }
  return leaving;
}

void ring_all_gather(ScheduleBuilder& builder, const RankOrder& team, BufferRange vector) {
  for (int step = 0; step + 1 < team.size(); ++step) {
    builder.exchange(team.rank(neighbour(team, 1)), team.part(vector, neighbour(team, -step)),
                     team.rank(neighbour(team, -1)), team.part(vector, neighbour(team, -step - 1)));
  }
}

/// A rank passes segment i - 1 on while segment i arrives.
void chain_broadcast(ScheduleBuilder& builder, const RankOrder& team, BufferRange vector) {
  const bool is_first = team.index == 0;
  const bool is_last = team.index + 1 == team.size();
  for (int i = 0; i <= team.size(); ++i) {
    const int passed = is_first ? i : i - 1;
    const bool passes = !is_last && passed >= 0 && passed < team.size();
    const bool receives = !is_first && i < team.size();
    builder.exchange(team.rank(neighbour(team, 1)), passes ? team.part(vector, passed) : BufferRange{},
                     team.rank(neighbour(team, -1)), receives ? team.part(vector, i) : BufferRange{});
  }
}

/// The same with a reduction on the way, from the last rank of the order to the first.
void chain_reduce(ScheduleBuilder& builder, const RankOrder& team, BufferRange own) {
  const int before = team.rank(neighbour(team, -1));
  const int after = team.rank(neighbour(team, 1));
  if (team.index + 1 == team.size()) {
    for (int i = 0; team.index > 0 && i < team.size(); ++i) builder.send(before, team.part(own, i));
    return;
  }
  if (team.index == 0) {
    for (int i = 0; i < team.size(); ++i) builder.receive_and_combine(after, team.part(own, i));
    return;
  }
  const std::int64_t slot_count = largest_part(team);
  BufferRange slots[2] = {builder.scratch(slot_count), builder.scratch(slot_count)};
  BufferRange leaving;
  for (int i = 0; i < team.size(); ++i) {
    const BufferRange addend = team.part(own, i);
    const BufferRange arriving = slots[i % 2].part(0, addend.count);
    builder.exchange(before, leaving, after, arriving);
    builder.combine(addend, arriving);
    leaving = arriving;
  }
  builder.send(before, leaving);
}

void shifted_all_to_all(ScheduleBuilder& builder, const RankOrder& team, BufferRange input,
                        BufferRange output) {
  builder.copy(team.part(input, team.index), team.part(output, team.index));
  for (int distance = 1; distance < team.size(); ++distance) {
    const int to = neighbour(team, distance);
    const int from = neighbour(team, -distance);
    builder.exchange(team.rank(to), team.part(input, to), team.rank(from), team.part(output, from));
  }
}

}  // namespace

void add_ring(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& team) {
  const BufferRange input = input_of(call);
  const BufferRange output = output_of(call);
  switch (call.operation) {
    case CommOperation::all_reduce:
      builder.copy(ring_reduce_scatter(builder, team, output), team.part(output, team.index));
      ring_all_gather(builder, team, output);
      break;
    case CommOperation::reduce_scatter:
      builder.copy(ring_reduce_scatter(builder, team, input), output);
      break;
    case CommOperation::all_gather:
      builder.copy(input, team.part(output, team.index));
      ring_all_gather(builder, team, output);
      break;
    case CommOperation::broadcast:
      chain_broadcast(builder, team, output);
      break;
    case CommOperation::reduce:
      chain_reduce(builder, team, team.index == 0 ? output : input);
      break;
    default:
      shifted_all_to_all(builder, team, input, output);
  }
}

}  // namespace mylos
