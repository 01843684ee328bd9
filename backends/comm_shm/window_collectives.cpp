// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/window_collectives.hpp"

#include <utility>

#include "backends/comm_shm/reduce_slices.hpp"

namespace mylos::comm_shm {

namespace {

// One ticket handles at most this many bytes of a part, so that the engine's lock is not held for long.
constexpr std::size_t ticket_bytes = 1 << 20;

/// One ticket for each piece of a part; `work(first)` handles the pieces that begin at byte `first` of their
/// parts.
template <class Work>
Collective pieces_of_parts(std::size_t part_bytes, Stores stores, Work work) {
  Collective collective;
  collective.tickets = count_pieces(part_bytes, ticket_bytes);
  collective.work = [stores, work = std::move(work)](std::int64_t t, int /*slot*/) {
    work(static_cast<std::size_t>(t) * ticket_bytes);
    finish_stores(stores);
  };
  return collective;
}

}  // namespace

Collective reduce_in_windows(const WindowGroup& group, const Division& division, DType dtype, ReduceOp op,
                             const Places& outputs, std::size_t outputs_begin) {
  return pieces_of_parts(division.part, group.stores, [=](std::size_t first) {
    const auto [begin, bytes] = division.piece(group.rank, first, ticket_bytes);
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (const std::byte* place : group.places) from.push_back(place + begin);
    for (std::byte* output : outputs) to.push_back(output + (begin - outputs_begin));
    reduce_slices(dtype, op, from, to, bytes / size_of(dtype));
  });
}

Collective gather_in_windows(const WindowGroup& group, std::size_t part_bytes) {
  return pieces_of_parts(part_bytes, group.stores, [=](std::size_t first) {
    const std::size_t length = std::min(ticket_bytes, part_bytes - first);
    std::byte* output = group.places[static_cast<std::size_t>(group.rank)];
    std::size_t begin = first;
    for (const std::byte* place : group.places) {
      if (place != output) copy_bytes(output + begin, place + begin, length, group.stores);
      begin += part_bytes;
    }
  });
}

Collective broadcast_in_windows(const WindowGroup& group, std::size_t bytes, int root) {
  return pieces_of_parts(bytes, group.stores, [=](std::size_t first) {
    if (group.rank == root) return;
    copy_bytes(group.places[static_cast<std::size_t>(group.rank)] + first,
               group.places[static_cast<std::size_t>(root)] + first, std::min(ticket_bytes, bytes - first),
               group.stores);
  });
}

Collective exchange_in_windows(const WindowGroup& group, std::byte* output, std::size_t part_bytes) {
  return pieces_of_parts(part_bytes, group.stores, [=](std::size_t first) {
    const std::size_t own = static_cast<std::size_t>(group.rank) * part_bytes;
    const std::size_t length = std::min(ticket_bytes, part_bytes - first);
    std::byte* to = output + first;
    for (const std::byte* place : group.places) {
      copy_bytes(to, place + own + first, length, group.stores);
      to += part_bytes;
    }
  });
}

}  // namespace mylos::comm_shm
