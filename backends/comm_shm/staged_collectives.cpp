// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/staged_collectives.hpp"

#include "backends/comm_shm/reduce_slices.hpp"
#include "backends/comm_shm/streaming_copy.hpp"

namespace mylos::comm_shm {

namespace {

/// Bytes of a slot per rank, rounded down to whole cache lines.
std::size_t share_of_slot(int ranks) {
  return SharedPart::slot_bytes / static_cast<std::size_t>(ranks) / Division::line * Division::line;
}

/// Reduces the data at `offset` of slot `slot` of all ranks into `output`, with `own` in place of this rank's
/// data.
void reduce_slots(StagedGroup group, int slot, std::size_t offset, const std::byte* own, std::byte* output,
                  std::size_t bytes, DType dtype, ReduceOp op) {
  std::vector<const std::byte*> from;
  for (int rank = 0; rank < group.size(); ++rank)
    from.push_back(rank == group.rank ? own : group.slot(rank, slot) + offset);
  reduce_slices(dtype, op, from, {&output, 1}, bytes / size_of(dtype));
}

/// Copies bytes [first, first + chunk) of every other rank's part of `input` to that rank's place, which has
/// `chunk` bytes, in this rank's slot.
void fill_parts(StagedGroup group, int slot, const std::byte* input, const Division& division,
                std::size_t first, std::size_t chunk) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank) continue;
    const Piece piece = division.piece(rank, first, chunk);
    copy_to_other_core(group.slot(group.rank, slot) + static_cast<std::size_t>(rank) * chunk,
                       input + piece.begin, piece.bytes);
  }
}

/// One ticket for each chunk of `chunk` bytes: fill(first, slot) and work(first, slot) handle the chunk that
/// begins at byte `first`.
template <class Fill, class Work>
Collective in_chunks(std::size_t bytes, std::size_t chunk, Fill fill, Work work) {
  Collective collective;
  collective.tickets = count_pieces(bytes, chunk);
  collective.fill = [=](std::int64_t t, int slot) { fill(static_cast<std::size_t>(t) * chunk, slot); };
  collective.work = [=](std::int64_t t, int slot) { work(static_cast<std::size_t>(t) * chunk, slot); };
  return collective;
}

}  // namespace

Collective reduce_whole(StagedGroup group, std::byte* data, std::size_t bytes, DType dtype, ReduceOp op,
                        std::optional<int> root) {
  constexpr std::size_t chunk = SharedPart::slot_bytes;
  const auto fill = [=](std::size_t first, int slot) {
    if (group.rank != root)
      copy_to_other_core(group.slot(group.rank, slot), data + first, std::min(chunk, bytes - first));
  };
  const auto work = [=](std::size_t first, int slot) {
    std::byte* own = data + first;
    if (!root || group.rank == root)
      reduce_slots(group, slot, 0, own, own, std::min(chunk, bytes - first), dtype, op);
  };
  return in_chunks(bytes, chunk, fill, work);
}

Collective reduce_parts(StagedGroup group, const std::byte* input, std::byte* output,
                        const Division& division, DType dtype, ReduceOp op) {
  const std::size_t chunk = share_of_slot(group.size());
  const auto fill = [=](std::size_t first, int slot) {
    fill_parts(group, slot, input, division, first, chunk);
  };
  const auto work = [=](std::size_t first, int slot) {
    const Piece piece = division.piece(group.rank, first, chunk);
    reduce_slots(group, slot, static_cast<std::size_t>(group.rank) * chunk, input + piece.begin,
                 output + first, piece.bytes, dtype, op);
  };
  return in_chunks(division.part, chunk, fill, work);
}

Collective gather_parts(StagedGroup group, const std::byte* input, std::byte* output,
                        const Division& division) {
  constexpr std::size_t chunk = SharedPart::slot_bytes;
  const auto fill = [=](std::size_t first, int slot) {
    const Piece piece = division.piece(group.rank, first, chunk);
    copy_to_other_core(group.slot(group.rank, slot), input + first, piece.bytes);
  };
  const auto work = [=](std::size_t first, int slot) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const Piece piece = division.piece(rank, first, chunk);
      const std::byte* from = rank == group.rank ? input + first : group.slot(rank, slot);
      if (from != output + piece.begin) copy_bytes(output + piece.begin, from, piece.bytes, Stores::cached);
    }
  };
  return in_chunks(division.part, chunk, fill, work);
}

Collective broadcast_staged(StagedGroup group, std::byte* data, std::size_t bytes, int root) {
  constexpr std::size_t chunk = SharedPart::slot_bytes;
  const auto fill = [=](std::size_t first, int slot) {
    if (group.rank == root)
      copy_to_other_core(group.slot(root, slot), data + first, std::min(chunk, bytes - first));
  };
  const auto work = [=](std::size_t first, int slot) {
    if (group.rank != root)
      copy_bytes(data + first, group.slot(root, slot), std::min(chunk, bytes - first), Stores::cached);
  };
  return in_chunks(bytes, chunk, fill, work);
}

Collective exchange_parts(StagedGroup group, const std::byte* input, std::byte* output,
                          const Division& division) {
  const std::size_t chunk = share_of_slot(group.size());
  const auto fill = [=](std::size_t first, int slot) {
    fill_parts(group, slot, input, division, first, chunk);
  };
  const auto work = [=](std::size_t first, int slot) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const Piece piece = division.piece(rank, first, chunk);
      const std::byte* from = rank == group.rank
                                  ? input + piece.begin
                                  : group.slot(rank, slot) + static_cast<std::size_t>(group.rank) * chunk;
      copy_bytes(output + piece.begin, from, piece.bytes, Stores::cached);
    }
  };
  return in_chunks(division.part, chunk, fill, work);
}

Collective meet() {
  return in_chunks(
      1, 1, [](std::size_t /*first*/, int /*slot*/) {}, [](std::size_t /*first*/, int /*slot*/) {});
}

}  // namespace mylos::comm_shm
