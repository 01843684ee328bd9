// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/staged_collectives.hpp"

#include <cstring>

#include "backends/comm_shm/reduce_slices.hpp"
#include "backends/comm_shm/streaming_copy.hpp"

namespace mylos::comm_shm {

namespace {

void copy_out(std::byte* to, const std::byte* from, std::size_t bytes) {
  copy_bytes(to, from, bytes, Stores::cached);
}

/// Bytes of a slot per rank, rounded down to whole cache lines.
std::size_t share_of_slot(int ranks) {
  return SharedPart::slot_bytes / static_cast<std::size_t>(ranks) / Division::line * Division::line;
}

/// Reduces the data at `offset` of all slots into `output`, with `own` in place of this rank's slot.
void reduce_slots(StagedGroup group, int slot, std::size_t offset, const std::byte* own, std::byte* output,
                  std::size_t bytes, DType dtype, ReduceOp op) {
  std::vector<const std::byte*> from;
  for (int rank = 0; rank < group.size(); ++rank)
    from.push_back(rank == group.rank ? own : group.slot(rank, slot) + offset);
  reduce_slices(dtype, op, from, {&output, 1}, bytes / size_of(dtype));
}

/// Copies chunk `t` of every other rank's part into this rank's slot, one after the other.
void fill_parts(StagedGroup group, int slot, const std::byte* input, const Division& division, std::int64_t t,
                std::size_t chunk) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank) continue;
    const Piece piece = division.piece(rank, static_cast<std::size_t>(t) * chunk, chunk);
    copy_to_other_core(group.slot(group.rank, slot) + static_cast<std::size_t>(rank) * chunk,
                       input + piece.begin, piece.bytes);
  }
}

}  // namespace

Collective reduce_whole(StagedGroup group, std::byte* data, std::size_t bytes, DType dtype, ReduceOp op,
                        std::optional<int> root) {
  constexpr std::size_t chunk = SharedPart::slot_bytes;
  const auto place = [=](std::int64_t t) {
    const std::size_t begin = static_cast<std::size_t>(t) * chunk;
    return Piece{begin, std::min(chunk, bytes - begin)};
  };
  Collective collective;
  collective.tickets = count_pieces(bytes, chunk);
  collective.fill = [=](std::int64_t t, int slot) {
    if (group.rank != root)
      copy_to_other_core(group.slot(group.rank, slot), data + place(t).begin, place(t).bytes);
  };
  collective.work = [=](std::int64_t t, int slot) {
    std::byte* own = data + place(t).begin;
    if (!root || group.rank == root) reduce_slots(group, slot, 0, own, own, place(t).bytes, dtype, op);
  };
  return collective;
}

Collective reduce_parts(StagedGroup group, const std::byte* input, std::byte* output,
                        const Division& division, DType dtype, ReduceOp op) {
  const std::size_t chunk = share_of_slot(group.size());
  Collective collective;
  collective.tickets = count_pieces(division.part, chunk);
  collective.fill = [=](std::int64_t t, int slot) { fill_parts(group, slot, input, division, t, chunk); };
  collective.work = [=](std::int64_t t, int slot) {
    const std::size_t first = static_cast<std::size_t>(t) * chunk;
    const Piece piece = division.piece(group.rank, first, chunk);
    reduce_slots(group, slot, static_cast<std::size_t>(group.rank) * chunk, input + piece.begin,
                 output + first, piece.bytes, dtype, op);
  };
  return collective;
}

Collective gather_parts(StagedGroup group, const std::byte* input, std::byte* output,
                        const Division& division) {
  constexpr std::size_t chunk = SharedPart::slot_bytes;
  Collective collective;
  collective.tickets = count_pieces(division.part, chunk);
  collective.fill = [=](std::int64_t t, int slot) {
    const std::size_t first = static_cast<std::size_t>(t) * chunk;
    const Piece piece = division.piece(group.rank, first, chunk);
    copy_to_other_core(group.slot(group.rank, slot), input + first, piece.bytes);
  };
  collective.work = [=](std::int64_t t, int slot) {
    const std::size_t first = static_cast<std::size_t>(t) * chunk;
    for (int rank = 0; rank < group.size(); ++rank) {
      const Piece piece = division.piece(rank, first, chunk);
      const std::byte* from = rank == group.rank ? input + first : group.slot(rank, slot);
      if (from != output + piece.begin) copy_out(output + piece.begin, from, piece.bytes);
    }
  };
  return collective;
}

Collective broadcast_staged(StagedGroup group, std::byte* data, std::size_t bytes, int root) {
  constexpr std::size_t chunk = SharedPart::slot_bytes;
  Collective collective;
  collective.tickets = count_pieces(bytes, chunk);
  collective.fill = [=](std::int64_t t, int slot) {
    const std::size_t begin = static_cast<std::size_t>(t) * chunk;
    if (group.rank == root)
      copy_to_other_core(group.slot(root, slot), data + begin, std::min(chunk, bytes - begin));
  };
  collective.work = [=](std::int64_t t, int slot) {
    const std::size_t begin = static_cast<std::size_t>(t) * chunk;
    if (group.rank != root) copy_out(data + begin, group.slot(root, slot), std::min(chunk, bytes - begin));
  };
  return collective;
}

Collective exchange_parts(StagedGroup group, const std::byte* input, std::byte* output,
                          const Division& division) {
  const std::size_t chunk = share_of_slot(group.size());
  Collective collective;
  collective.tickets = count_pieces(division.part, chunk);
  collective.fill = [=](std::int64_t t, int slot) { fill_parts(group, slot, input, division, t, chunk); };
  collective.work = [=](std::int64_t t, int slot) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const Piece piece = division.piece(rank, static_cast<std::size_t>(t) * chunk, chunk);
      const std::byte* from = rank == group.rank
                                  ? input + piece.begin
                                  : group.slot(rank, slot) + static_cast<std::size_t>(group.rank) * chunk;
      copy_out(output + piece.begin, from, piece.bytes);
    }
  };
  return collective;
}

Collective meet() {
  Collective collective;
  collective.fill = [](std::int64_t /*t*/, int /*slot*/) {};
  collective.work = [](std::int64_t /*t*/, int /*slot*/) {};
  return collective;
}

}  // namespace mylos::comm_shm
