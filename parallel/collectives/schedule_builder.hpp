// SPDX-License-Identifier: BSD-3-Clause
// ScheduleBuilder: writes the rounds of one rank; RankOrder: the ranks in the order in which an algorithm
// sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/collectives/collective_schedule.hpp"

namespace mylos {

/// Ranks in an algorithm's order, and the elements of the vector that each of them owns.
struct RankOrder {
  std::vector<int> ranks;
  std::vector<std::int64_t> first;  ///< ranks[i] owns the elements [first[i], first[i + 1])
  int index = -1;                   ///< the place of this rank, or -1 if it is not among them

  int size() const { return static_cast<int>(ranks.size()); }
  int rank(int i) const { return ranks[static_cast<std::size_t>(i)]; }
  /// The elements of `vector` that ranks[begin] to ranks[end - 1] own.
  BufferRange parts(BufferRange vector, int begin, int end) const {
    const std::int64_t offset = first[static_cast<std::size_t>(begin)];
    return vector.part(offset, first[static_cast<std::size_t>(end)] - offset);
  }
  BufferRange part(BufferRange vector, int i) const { return parts(vector, i, i + 1); }
};

/// All ranks, the root first; the vector is cut into parts whose sizes differ by at most one element.
RankOrder whole_order(const CollectiveCall& call, int rank);

/// Whether input and output are the same buffer.
bool is_in_place(CommOperation operation);
/// The buffers of `call`, in full.
BufferRange input_of(const CollectiveCall& call);
BufferRange output_of(const CollectiveCall& call);

/// Every message or exchange starts a new round; local steps join the latest round. Local steps and messages
/// without elements are left out; both sender and receiver leave out such a message.
class ScheduleBuilder {
 public:
  void send(int peer, BufferRange range) { exchange(peer, range, peer, {}); }
  void receive(int peer, BufferRange range) { exchange(peer, {}, peer, range); }
  /// Sends and receives in the same round.
  void exchange(int to, BufferRange sent, int from, BufferRange received);
  void copy(BufferRange from, BufferRange to);
  /// Sets `into` to the reduction of `from` and `into`.
  void combine(BufferRange from, BufferRange into);
  /// Scratch that stays valid for the whole schedule.
  BufferRange scratch(std::int64_t count);

  /// Receives the peer's values for the elements `own` and combines them with this rank's values. Returns the
  /// place of the result: `own` itself, or new scratch if `own` is input.
  BufferRange receive_and_combine(int peer, BufferRange own) { return exchange_and_combine(peer, {}, own); }
  /// The same, and sends `given` in the same round.
  BufferRange exchange_and_combine(int peer, BufferRange given, BufferRange own);

  CollectiveSchedule take() { return std::move(schedule_); }

 private:
  std::vector<LocalStep>& local_steps();

  CollectiveSchedule schedule_;
  std::int64_t scratch_top_ = 0;
};

}  // namespace mylos
