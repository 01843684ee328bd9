// SPDX-License-Identifier: BSD-3-Clause
// CollectiveSchedule: what one rank sends, receives and combines in a collective operation, as data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/communication/communicator.hpp"

namespace mylos {

/// How a collective operation is built from messages; `native` leaves it to the backend.
///
/// Sources: Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and
/// experience" (2007); Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
/// MPICH" (2005); Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
/// (2009).
enum class Algorithm : std::uint8_t { native, naive, tree, ring, halving_doubling };
inline constexpr std::array all_algorithms = {Algorithm::native, Algorithm::naive, Algorithm::tree,
                                              Algorithm::ring, Algorithm::halving_doubling};

constexpr std::string_view name_of(Algorithm algorithm) {
  constexpr std::array<std::string_view, all_algorithms.size()> names = {"native", "naive", "tree", "ring",
                                                                         "halving_doubling"};
  return names[static_cast<std::size_t>(algorithm)];
}

/// The operations that algorithms build from messages: the first values of CommOperation, in its order.
inline constexpr std::array scheduled_operations = {CommOperation::all_reduce, CommOperation::reduce_scatter,
                                                    CommOperation::all_gather, CommOperation::broadcast,
                                                    CommOperation::reduce,     CommOperation::all_to_all};

/// One collective operation of a group of `size` ranks. `count` is the number of elements in the buffer of
/// all_reduce, broadcast and reduce, in the output of reduce_scatter, in the input of all_gather, or in the
/// part that one rank sends to another in all_to_all.
struct CollectiveCall {
  CommOperation operation;
  int size;
  std::int64_t count;
  int root = 0;  ///< of broadcast and reduce
};

/// The buffers of a schedule. `input` is never written. all_reduce, broadcast and reduce have one buffer:
/// all_reduce and broadcast call it `output`, and reduce calls it `output` at the root and `input` elsewhere.
enum class BufferName : std::uint8_t { input, output, scratch };

/// The elements [first, first + count) of a buffer.
struct BufferRange {
  BufferName buffer = BufferName::output;
  std::int64_t first = 0;
  std::int64_t count = 0;

  BufferRange part(std::int64_t offset, std::int64_t part_count) const {
    return {buffer, first + offset, part_count};
  }
  bool operator==(const BufferRange&) const = default;
};

struct Transfer {
  int peer;
  BufferRange range;
};

struct LocalStep {
  enum class Kind : std::uint8_t { copy, combine };  ///< to = from, to = reduction of from and to

  Kind kind;
  BufferRange from;
  BufferRange to;
};

/// At most one message out and one in, at the same time, as on a node with one full-duplex port (the machine
/// model of Chan et al.). Once both are complete, `local` runs in order.
struct CollectiveRound {
  std::optional<Transfer> send;
  std::optional<Transfer> receive;
  std::vector<LocalStep> local;
};

/// The rounds of one rank, one after another. Messages between two ranks are received in the order in which
/// they are sent. Except in all_to_all, `output` is not written before `input` has been read for the last
/// time, unless `output` itself holds the input. Hence the output of reduce_scatter may lie within its input,
/// and the input of all_gather at its place in the output.
struct CollectiveSchedule {
  std::vector<CollectiveRound> rounds;
  std::int64_t scratch_count = 0;  ///< elements
};

/// The rounds of `rank`; `algorithm` is not `native`. Every algorithm supports all of
/// `scheduled_operations`; see algorithms.hpp.
CollectiveSchedule make_schedule(const CollectiveCall& call, Algorithm algorithm, int rank);

}  // namespace mylos
