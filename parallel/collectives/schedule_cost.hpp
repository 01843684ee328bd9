// SPDX-License-Identifier: BSD-3-Clause
// What the rounds of a collective cost: a rank's messages and bytes, and the time of all ranks.
#pragma once

#include <functional>

#include "parallel/collectives/collective_schedule.hpp"

namespace mylos {

/// What a schedule costs its rank.
struct ScheduleCost {
  std::uint64_t sends = 0;
  std::uint64_t receives = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t scratch_bytes = 0;
};

inline ScheduleCost cost_of(const CollectiveSchedule& schedule, DType dtype) {
  const auto bytes = [&](std::int64_t count) { return static_cast<std::uint64_t>(count) * size_of(dtype); };
  ScheduleCost cost;
  cost.scratch_bytes = bytes(schedule.scratch_count);
  for (const CollectiveRound& round : schedule.rounds) {
    if (round.send) {
      cost.sends += 1;
      cost.bytes_sent += bytes(round.send->range.count);
    }
    if (round.receive) {
      cost.receives += 1;
      cost.bytes_received += bytes(round.receive->range.count);
    }
  }
  return cost;
}

/// The time until the last rank has finished its rounds, in the unit of `message` and `local`, which give
/// that of a message and of a local step by their bytes. A receiver waits for the sender and then for the
/// transfer; a sender takes as long as the transfer, but does not wait for the receiver.
double time_of(const CollectiveCall& call, Algorithm algorithm, std::size_t element_bytes,
               const std::function<double(double)>& message, const std::function<double(double)>& local);

}  // namespace mylos
