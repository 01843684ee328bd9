// SPDX-License-Identifier: BSD-3-Clause
// Division: the bytes of a buffer as one part for each rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mylos::comm_shm {

struct Piece {
  std::size_t begin;
  std::size_t bytes;
};

/// `total` bytes in parts of `part` bytes. The first part lacks its first `skipped` bytes; the last parts may
/// be shorter or empty.
struct Division {
  static constexpr std::size_t line = 64;  // bytes of a cache line

  std::size_t total;
  std::size_t part;
  std::size_t skipped = 0;

  /// Bytes [first, first + length) of the part of `rank`, without skipped bytes and cut off at the end of the
  /// part.
  Piece piece(int rank, std::size_t first, std::size_t length) const {
    const std::size_t part_begin = static_cast<std::size_t>(rank) * part;
    const std::size_t part_end = std::min(part_begin + part, total + skipped);
    const std::size_t begin = std::min(part_begin + first, part_end);
    const std::size_t end = std::min(begin + length, part_end);
    const std::size_t begin_in_buffer = std::max(begin, skipped) - skipped;
    return {begin_in_buffer, std::max(end, skipped) - skipped - begin_in_buffer};
  }

  /// Parts cut at cache lines, for a buffer at `address`.
  static Division in_lines(const void* address, std::size_t total, int ranks) {
    const std::size_t skipped = reinterpret_cast<std::uintptr_t>(address) % line;
    const auto divisor = static_cast<std::size_t>(ranks) * line;
    return {total, (total + skipped + divisor - 1) / divisor * line, skipped};
  }
};

/// How many pieces of `length` bytes cover `bytes`.
inline std::int64_t count_pieces(std::size_t bytes, std::size_t length) {
  return static_cast<std::int64_t>((bytes + length - 1) / length);
}

}  // namespace mylos::comm_shm
