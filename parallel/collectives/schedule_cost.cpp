// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/schedule_cost.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace mylos {

double time_of(const CollectiveCall& call, Algorithm algorithm, std::size_t element_bytes,
               const std::function<double(double)>& message, const std::function<double(double)>& local) {
  struct Rank {
    CollectiveSchedule schedule;
    std::size_t round = 0;
    bool has_sent = false;
    double time = 0.0;
  };
  const auto bytes = [&](const BufferRange& range) {
    return static_cast<double>(range.count) * static_cast<double>(element_bytes);
  };
  std::map<std::pair<int, int>, std::deque<double>> sent;  // times of posting, by sender and receiver
  /// Returns whether the rank completed its round.
  const auto advance = [&](Rank& rank, int self) {
    const CollectiveRound& round = rank.schedule.rounds[rank.round];
    if (round.send && !rank.has_sent) sent[{self, round.send->peer}].push_back(rank.time);
    rank.has_sent = true;
    double end = rank.time;
    if (round.receive) {
      std::deque<double>& messages = sent[{round.receive->peer, self}];
      if (messages.empty()) return false;
      end = std::max(end, messages.front()) + message(bytes(round.receive->range));
      messages.pop_front();
    }
    if (round.send) end = std::max(end, rank.time + message(bytes(round.send->range)));
    for (const LocalStep& step : round.local) end += local(bytes(step.to));
    rank.time = end;
    rank.has_sent = false;
    ++rank.round;
    return true;
  };
  std::vector<Rank> ranks;
  for (int r = 0; r < call.size; ++r) ranks.push_back({make_schedule(call, algorithm, r)});
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < call.size; ++r) {
      Rank& rank = ranks[static_cast<std::size_t>(r)];
      while (rank.round < rank.schedule.rounds.size() && advance(rank, r)) moved = true;
    }
  }
  return std::ranges::max(ranks, {}, &Rank::time).time;
}

}  // namespace mylos
