// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/schedule_builder.hpp"

#include <algorithm>

namespace mylos {

bool is_in_place(CommOperation operation) {
  return operation == CommOperation::all_reduce || operation == CommOperation::broadcast ||
         operation == CommOperation::reduce;
}

RankOrder whole_order(const CollectiveCall& call, int rank) {
  const std::int64_t total = is_in_place(call.operation) ? call.count : call.count * call.size;
  RankOrder order;
  for (int i = 0; i < call.size; ++i) {
    order.ranks.push_back((call.root + i) % call.size);
    order.first.push_back(total * i / call.size);
  }
  order.first.push_back(total);
  order.index = (rank - call.root + call.size) % call.size;
  return order;
}

BufferRange input_of(const CollectiveCall& call) {
  const bool one_part = is_in_place(call.operation) || call.operation == CommOperation::all_gather;
  return {BufferName::input, 0, one_part ? call.count : call.count * call.size};
}

BufferRange output_of(const CollectiveCall& call) {
  const bool one_part = is_in_place(call.operation) || call.operation == CommOperation::reduce_scatter;
  return {BufferName::output, 0, one_part ? call.count : call.count * call.size};
}

void ScheduleBuilder::exchange(int to, BufferRange sent, int from, BufferRange received) {
  if (sent.count == 0 && received.count == 0) return;
  CollectiveRound& round = schedule_.rounds.emplace_back();
  if (sent.count > 0) round.send = {to, sent};
  if (received.count > 0) round.receive = {from, received};
}

std::vector<LocalStep>& ScheduleBuilder::local_steps() {
  if (schedule_.rounds.empty()) schedule_.rounds.emplace_back();
  return schedule_.rounds.back().local;
}

void ScheduleBuilder::copy(BufferRange from, BufferRange to) {
  require(from.count == to.count, "source and destination of a copy have equal lengths");
  if (from.count > 0 && from != to) local_steps().push_back({LocalStep::Kind::copy, from, to});
}

void ScheduleBuilder::combine(BufferRange from, BufferRange into) {
  require(from.count == into.count, "combined ranges have equal lengths");
  if (from.count > 0) local_steps().push_back({LocalStep::Kind::combine, from, into});
}

BufferRange ScheduleBuilder::scratch(std::int64_t count) {
  const BufferRange range{BufferName::scratch, scratch_top_, count};
  scratch_top_ += count;
  schedule_.scratch_count = std::max(schedule_.scratch_count, scratch_top_);
  return range;
}

BufferRange ScheduleBuilder::exchange_and_combine(int peer, BufferRange given, BufferRange own) {
  const std::int64_t top = scratch_top_;
  const BufferRange received = scratch(own.count);
  exchange(peer, given, peer, received);
  if (own.buffer == BufferName::input) {
    combine(own, received);
    return received;
  }
  combine(received, own);
  scratch_top_ = top;
  return own;
}

}  // namespace mylos
