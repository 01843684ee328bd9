// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/algorithms.hpp"

namespace mylos {

namespace {

/// The place in the order that is `distance` places ahead of this rank; a negative distance counts backwards.
int neighbour(const RankOrder& order, int distance) {
  return ((order.index + distance) % order.size() + order.size()) % order.size();
}

std::int64_t largest_part(const RankOrder& order) {
  return (order.first.back() + order.size() - 1) / order.size();
}

/// Partial sums travel towards their owner. Returns the place of this rank's fully reduced part. Two slots of
/// scratch suffice: one sum leaves while the next arrives.
BufferRange ring_reduce_scatter(ScheduleBuilder& builder, const RankOrder& order, BufferRange own) {
  if (order.size() == 1) return own;
  const std::int64_t slot_count = largest_part(order);
  BufferRange leaving = order.part(own, neighbour(order, -1));
  BufferRange slots[2] = {builder.scratch(slot_count), builder.scratch(slot_count)};
  for (int step = 0; step + 1 < order.size(); ++step) {
    const BufferRange addend = order.part(own, neighbour(order, -step - 2));
    const BufferRange arriving = slots[step % 2].part(0, addend.count);
    builder.exchange(order.rank(neighbour(order, 1)), leaving, order.rank(neighbour(order, -1)), arriving);
    builder.combine(addend, arriving);
    leaving = arriving;
  }
  return leaving;
}

void ring_all_gather(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector) {
  for (int step = 0; step + 1 < order.size(); ++step) {
    builder.exchange(order.rank(neighbour(order, 1)), order.part(vector, neighbour(order, -step)),
                     order.rank(neighbour(order, -1)), order.part(vector, neighbour(order, -step - 1)));
  }
}

/// A rank passes segment i - 1 on while segment i arrives.
void chain_broadcast(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector) {
  const bool is_first = order.index == 0;
  const bool is_last = order.index + 1 == order.size();
  for (int i = 0; i <= order.size(); ++i) {
    const int passed = is_first ? i : i - 1;
    const bool passes = !is_last && passed >= 0 && passed < order.size();
    const bool receives = !is_first && i < order.size();
    builder.exchange(order.rank(neighbour(order, 1)), passes ? order.part(vector, passed) : BufferRange{},
                     order.rank(neighbour(order, -1)), receives ? order.part(vector, i) : BufferRange{});
  }
}

/// The same pipeline from the last rank of the order to the first; every rank except the last reduces.
void chain_reduce(ScheduleBuilder& builder, const RankOrder& order, BufferRange own) {
  const int before = order.rank(neighbour(order, -1));
  const int after = order.rank(neighbour(order, 1));
  if (order.index + 1 == order.size()) {
    for (int i = 0; order.index > 0 && i < order.size(); ++i) builder.send(before, order.part(own, i));
    return;
  }
  if (order.index == 0) {
    for (int i = 0; i < order.size(); ++i) builder.receive_and_combine(after, order.part(own, i));
    return;
  }
  const std::int64_t slot_count = largest_part(order);
  BufferRange slots[2] = {builder.scratch(slot_count), builder.scratch(slot_count)};
  BufferRange leaving;
  for (int i = 0; i < order.size(); ++i) {
    const BufferRange addend = order.part(own, i);
    const BufferRange arriving = slots[i % 2].part(0, addend.count);
    builder.exchange(before, leaving, after, arriving);
    builder.combine(addend, arriving);
    leaving = arriving;
  }
  builder.send(before, leaving);
}

void shifted_all_to_all(ScheduleBuilder& builder, const RankOrder& order, BufferRange input,
                        BufferRange output) {
  builder.copy(order.part(input, order.index), order.part(output, order.index));
  for (int distance = 1; distance < order.size(); ++distance) {
    const int to = neighbour(order, distance);
    const int from = neighbour(order, -distance);
    builder.exchange(order.rank(to), order.part(input, to), order.rank(from), order.part(output, from));
  }
}

}  // namespace

void add_ring(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order) {
  const BufferRange input = input_of(call);
  const BufferRange output = output_of(call);
  switch (call.operation) {
    case CommOperation::all_reduce:
      builder.copy(ring_reduce_scatter(builder, order, output), order.part(output, order.index));
      ring_all_gather(builder, order, output);
      break;
    case CommOperation::reduce_scatter:
      builder.copy(ring_reduce_scatter(builder, order, input), output);
      break;
    case CommOperation::all_gather:
      builder.copy(input, order.part(output, order.index));
      ring_all_gather(builder, order, output);
      break;
    case CommOperation::broadcast:
      chain_broadcast(builder, order, output);
      break;
    case CommOperation::reduce:
      chain_reduce(builder, order, order.index == 0 ? output : input);
      break;
    default:
      shifted_all_to_all(builder, order, input, output);
  }
}

}  // namespace mylos
