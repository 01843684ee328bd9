// SPDX-License-Identifier: BSD-3-Clause
#include <bit>

#include "parallel/collectives/algorithms.hpp"
#include "parallel/collectives/binomial_tree.hpp"

namespace mylos {

namespace {

/// The ranks that halve and double (their number is a power of two), and this rank's partner in folding.
struct FoldedTeam {
  RankOrder active;
  /// The rank that is folded into this one, or the rank into which this one is folded; -1: none.
  int partner = -1;

  bool is_folded() const { return active.index < 0; }
  bool has_partner() const { return partner >= 0; }
};

/// The first rank of a pair is active, so the root is active. With `whole_parts` an active rank owns its part
/// of the vector and its partner's; otherwise the active ranks own equal parts.
FoldedTeam fold(const RankOrder& team, bool whole_parts) {
  const int size = static_cast<int>(std::bit_floor(static_cast<unsigned>(team.size())));
  const int pairs = team.size() - size;
  const std::int64_t total = team.first.back();
  FoldedTeam folded;
  for (int i = 0; i <= size; ++i) {
    const int in_team = i < pairs ? 2 * i : i + pairs;
    if (i < size) folded.active.ranks.push_back(team.rank(in_team));
    folded.active.first.push_back(whole_parts ? team.first[static_cast<std::size_t>(in_team)]
                                              : total * i / size);
  }
  if (team.index >= 2 * pairs) {
    folded.active.index = team.index - pairs;
  } else {
    folded.active.index = team.index % 2 == 0 ? team.index / 2 : -1;
    folded.partner = team.rank(team.index ^ 1);
  }
  return folded;
}

/// In each step a rank gives away half of the range that it still holds. Returns the place of its own
/// complete part.
BufferRange recursive_halving(ScheduleBuilder& builder, const RankOrder& team, BufferRange own) {
  const auto first = [&](int i) { return team.first[static_cast<std::size_t>(i)]; };
  int begin = 0;
  for (int half = team.size() / 2; half > 0; half /= 2) {
    const bool upper = (team.index & half) != 0;
    const std::int64_t offset = first(begin);
    const std::int64_t middle = first(begin + half) - offset;
    const BufferRange low = own.part(0, middle);
    const BufferRange high = own.part(middle, first(begin + 2 * half) - offset - middle);
    own = builder.exchange_and_combine(team.rank(team.index ^ half), upper ? low : high, upper ? high : low);
    if (upper) begin += half;
  }
  return own;
}

/// In each step two ranks exchange everything that they hold.
void recursive_doubling(ScheduleBuilder& builder, const RankOrder& team, BufferRange vector) {
  for (int held = 1; held < team.size(); held *= 2) {
    const int own = team.index & -held;
    const int other = own ^ held;
    builder.exchange(team.rank(team.index ^ held), team.parts(vector, own, own + held),
                     team.rank(team.index ^ held), team.parts(vector, other, other + held));
  }
}

void all_reduce(ScheduleBuilder& builder, const FoldedTeam& team, BufferRange buffer) {
  if (team.is_folded()) {
    builder.send(team.partner, buffer);
    builder.receive(team.partner, buffer);
    return;
  }
  if (team.has_partner()) builder.receive_and_combine(team.partner, buffer);
  recursive_halving(builder, team.active, buffer);
  recursive_doubling(builder, team.active, buffer);
  if (team.has_partner()) builder.send(team.partner, buffer);
}

void reduce_scatter(ScheduleBuilder& builder, const FoldedTeam& team, BufferRange input, BufferRange output) {
  if (team.is_folded()) {
    builder.send(team.partner, input);
    builder.receive(team.partner, output);
    return;
  }
  if (team.has_partner()) input = builder.receive_and_combine(team.partner, input);
  const BufferRange sum = recursive_halving(builder, team.active, input);
  builder.copy(sum.part(0, output.count), output);
  if (team.has_partner()) builder.send(team.partner, sum.part(output.count, output.count));
}

void all_gather(ScheduleBuilder& builder, const FoldedTeam& team, BufferRange input, BufferRange output) {
  if (team.is_folded()) {
    builder.send(team.partner, input);
    builder.receive(team.partner, output);
    return;
  }
  const BufferRange held = team.active.part(output, team.active.index);
  builder.copy(input, held.part(0, input.count));
  if (team.has_partner()) builder.receive(team.partner, held.part(input.count, input.count));
  recursive_doubling(builder, team.active, output);
  if (team.has_partner()) builder.send(team.partner, output);
}

void broadcast(ScheduleBuilder& builder, const FoldedTeam& team, BufferRange buffer) {
  if (team.is_folded()) {
    builder.receive(team.partner, buffer);
    return;
  }
  tree_scatter(builder, team.active, buffer, team.active.part(buffer, team.active.index));
  recursive_doubling(builder, team.active, buffer);
  if (team.has_partner()) builder.send(team.partner, buffer);
}

void reduce(ScheduleBuilder& builder, const FoldedTeam& team, BufferRange input, BufferRange output) {
  if (team.is_folded()) {
    builder.send(team.partner, input);
    return;
  }
  const bool is_root = team.active.index == 0;
  BufferRange own = is_root ? output : input;
  if (team.has_partner()) own = builder.receive_and_combine(team.partner, own);
  const BufferRange sum = recursive_halving(builder, team.active, own);
  tree_gather(builder, team.active, sum, is_root ? output : builder.scratch(input.count));
}

void pairwise_all_to_all(ScheduleBuilder& builder, const RankOrder& team, BufferRange input,
                         BufferRange output) {
  builder.copy(team.part(input, team.index), team.part(output, team.index));
  const int end = static_cast<int>(std::bit_ceil(static_cast<unsigned>(team.size())));
  for (int bits = 1; bits < end; ++bits) {
    const int peer = team.index ^ bits;
    if (peer >= team.size()) continue;
    builder.exchange(team.rank(peer), team.part(input, peer), team.rank(peer), team.part(output, peer));
  }
}

}  // namespace

void add_halving_doubling(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& team) {
  const BufferRange input = input_of(call);
  const BufferRange output = output_of(call);
  switch (call.operation) {
    case CommOperation::all_reduce:
      all_reduce(builder, fold(team, false), output);
      break;
    case CommOperation::reduce_scatter:
      reduce_scatter(builder, fold(team, true), input, output);
      break;
    case CommOperation::all_gather:
      all_gather(builder, fold(team, true), input, output);
      break;
    case CommOperation::broadcast:
      broadcast(builder, fold(team, false), output);
      break;
    case CommOperation::reduce:
      reduce(builder, fold(team, false), input, output);
      break;
    default:
      pairwise_all_to_all(builder, team, input, output);
  }
}

}  // namespace mylos
