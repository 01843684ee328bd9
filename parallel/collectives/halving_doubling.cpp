// SPDX-License-Identifier: BSD-3-Clause
#include <bit>

#include "parallel/collectives/algorithms.hpp"
#include "parallel/collectives/tree.hpp"

namespace mylos {

namespace {

/// The ranks that halve and double (their number is a power of two), and this rank's partner in folding.
struct FoldedOrder {
  RankOrder active;
  /// The rank that is folded into this one, or the rank into which this one is folded; -1 if there is none.
  int partner = -1;

  bool is_folded() const { return active.index < 0; }
  bool has_partner() const { return partner >= 0; }
};

/// The first rank of a pair is active, so the root is active. With `whole_parts` an active rank owns its own
/// part of the vector and its partner's; otherwise the parts of the active ranks differ by at most one
/// element in size.
FoldedOrder fold(const RankOrder& order, bool whole_parts) {
  const int size = static_cast<int>(std::bit_floor(static_cast<unsigned>(order.size())));
  const int pairs = order.size() - size;
  const std::int64_t total = order.first.back();
  FoldedOrder folded;
  for (int i = 0; i <= size; ++i) {
    const int in_team = i < pairs ? 2 * i : i + pairs;
    if (i < size) folded.active.ranks.push_back(order.rank(in_team));
    folded.active.first.push_back(whole_parts ? order.first[static_cast<std::size_t>(in_team)]
                                              : total * i / size);
  }
  if (order.index >= 2 * pairs) {
    folded.active.index = order.index - pairs;
  } else {
    folded.active.index = order.index % 2 == 0 ? order.index / 2 : -1;
    folded.partner = order.rank(order.index ^ 1);
  }
  return folded;
}

/// In each step a rank gives away half of the parts that it still holds. Returns the place of the rank's
/// fully reduced part.
BufferRange recursive_halving(ScheduleBuilder& builder, const RankOrder& order, BufferRange own) {
  const auto first = [&](int i) { return order.first[static_cast<std::size_t>(i)]; };
  int begin = 0;
  for (int half = order.size() / 2; half > 0; half /= 2) {
    const bool upper = (order.index & half) != 0;
    const std::int64_t offset = first(begin);
    const std::int64_t middle = first(begin + half) - offset;
    const BufferRange low = own.part(0, middle);
    const BufferRange high = own.part(middle, first(begin + 2 * half) - offset - middle);
    own =
        builder.exchange_and_combine(order.rank(order.index ^ half), upper ? low : high, upper ? high : low);
    if (upper) begin += half;
  }
  return own;
}

/// In each step two ranks exchange all the parts that they have so far.
void recursive_doubling(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector) {
  for (int held = 1; held < order.size(); held *= 2) {
    const int own = order.index & -held;
    const int other = own ^ held;
    builder.exchange(order.rank(order.index ^ held), order.parts(vector, own, own + held),
                     order.rank(order.index ^ held), order.parts(vector, other, other + held));
  }
}

void all_reduce(ScheduleBuilder& builder, const FoldedOrder& order, BufferRange buffer) {
  if (order.is_folded()) {
    builder.send(order.partner, buffer);
    builder.receive(order.partner, buffer);
    return;
  }
  if (order.has_partner()) builder.receive_and_combine(order.partner, buffer);
  recursive_halving(builder, order.active, buffer);
  recursive_doubling(builder, order.active, buffer);
  if (order.has_partner()) builder.send(order.partner, buffer);
}

void reduce_scatter(ScheduleBuilder& builder, const FoldedOrder& order, BufferRange input,
                    BufferRange output) {
  if (order.is_folded()) {
    builder.send(order.partner, input);
    builder.receive(order.partner, output);
    return;
  }
  if (order.has_partner()) input = builder.receive_and_combine(order.partner, input);
  const BufferRange sum = recursive_halving(builder, order.active, input);
  builder.copy(sum.part(0, output.count), output);
  if (order.has_partner()) builder.send(order.partner, sum.part(output.count, output.count));
}

void all_gather(ScheduleBuilder& builder, const FoldedOrder& order, BufferRange input, BufferRange output) {
  if (order.is_folded()) {
    builder.send(order.partner, input);
    builder.receive(order.partner, output);
    return;
  }
  const BufferRange held = order.active.part(output, order.active.index);
  builder.copy(input, held.part(0, input.count));
  if (order.has_partner()) builder.receive(order.partner, held.part(input.count, input.count));
  recursive_doubling(builder, order.active, output);
  if (order.has_partner()) builder.send(order.partner, output);
}

void broadcast(ScheduleBuilder& builder, const FoldedOrder& order, BufferRange buffer) {
  if (order.is_folded()) {
    builder.receive(order.partner, buffer);
    return;
  }
  binomial_tree(builder, order.active).scatter(buffer, order.active.part(buffer, order.active.index));
  recursive_doubling(builder, order.active, buffer);
  if (order.has_partner()) builder.send(order.partner, buffer);
}

void reduce(ScheduleBuilder& builder, const FoldedOrder& order, BufferRange input, BufferRange output) {
  if (order.is_folded()) {
    builder.send(order.partner, input);
    return;
  }
  const bool is_root = order.active.index == 0;
  BufferRange own = is_root ? output : input;
  if (order.has_partner()) own = builder.receive_and_combine(order.partner, own);
  const BufferRange sum = recursive_halving(builder, order.active, own);
  binomial_tree(builder, order.active).gather(sum, is_root ? output : builder.scratch(input.count));
}

void pairwise_all_to_all(ScheduleBuilder& builder, const RankOrder& order, BufferRange input,
                         BufferRange output) {
  builder.copy(order.part(input, order.index), order.part(output, order.index));
  const int end = static_cast<int>(std::bit_ceil(static_cast<unsigned>(order.size())));
  for (int bits = 1; bits < end; ++bits) {
    const int peer = order.index ^ bits;
    if (peer >= order.size()) continue;
    builder.exchange(order.rank(peer), order.part(input, peer), order.rank(peer), order.part(output, peer));
  }
}

}  // namespace

void add_halving_doubling(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order) {
  const BufferRange input = input_of(call);
  const BufferRange output = output_of(call);
  switch (call.operation) {
    case CommOperation::all_reduce:
      all_reduce(builder, fold(order, false), output);
      break;
    case CommOperation::reduce_scatter:
      reduce_scatter(builder, fold(order, true), input, output);
      break;
    case CommOperation::all_gather:
      all_gather(builder, fold(order, true), input, output);
      break;
    case CommOperation::broadcast:
      broadcast(builder, fold(order, false), output);
      break;
    case CommOperation::reduce:
      reduce(builder, fold(order, false), input, output);
      break;
    default:
      pairwise_all_to_all(builder, order, input, output);
  }
}

}  // namespace mylos
