// SPDX-License-Identifier: BSD-3-Clause
// SharedPart: the memory that each rank of a communicator shares with the others, and its layout.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "backends/comm_shm/shared_memory.hpp"

namespace mylos::comm_shm {

/// Two cache lines: processors fetch them in pairs.
inline constexpr std::size_t line_bytes = 128;

/// Wakes the rank that owns it. All accesses are sequentially consistent. Before a rank sleeps, it registers
/// as a sleeper and then checks the counters once more. After a rank has raised a counter, it checks for
/// sleepers.
struct alignas(line_bytes) Doorbell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;
};

/// A number that only one rank raises.
struct alignas(line_bytes) Counter {
  std::atomic<std::uint64_t> value;
};

/// A byte ring from one rank to another.
struct Ring {
  static constexpr std::uint64_t capacity = 256 << 10;

  Counter written;  ///< bytes that the sender has written
  Counter read;     ///< bytes that the receiver has read
  alignas(line_bytes) std::array<std::byte, capacity> data;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

/// The part of one rank, its owner. The initial state is zeroed memory; pages that are never used cost no
/// memory.
class SharedPart {
 public:
  static constexpr int num_slots = 2;  ///< one holds data while the other is filled
  static constexpr std::size_t slot_bytes = 256 << 10;

  /// Size in bytes of one rank's part in a communicator of `ranks` ranks.
  static std::size_t bytes(int ranks) {
    return sizeof(Head) + static_cast<std::size_t>(ranks) * sizeof(Ring) + num_slots * slot_bytes;
  }

  SharedPart(SharedBytes memory, int ranks)
      : memory_(std::move(memory)),
        rings_(reinterpret_cast<Ring*>(memory_.get() + sizeof(Head))),
        slots_(reinterpret_cast<std::byte*>(rings_ + ranks)) {}

  Doorbell& doorbell() const { return head().doorbell; }
  /// The number of tickets that the owner has filled.
  std::atomic<std::uint64_t>& filled() const { return head().filled.value; }
  /// The number of tickets for which the owner is done with the data of all ranks.
  std::atomic<std::uint64_t>& worked() const { return head().worked.value; }
  /// Messages from `rank` to the owner.
  Ring& ring_from(int rank) const { return rings_[rank]; }
  std::byte* slot(int index) const { return slots_ + static_cast<std::size_t>(index) * slot_bytes; }

 private:
  struct Head {
    Doorbell doorbell;
    Counter filled;
    Counter worked;
  };

  Head& head() const { return *reinterpret_cast<Head*>(memory_.get()); }

  SharedBytes memory_;
  Ring* rings_;
  std::byte* slots_;
};

}  // namespace mylos::comm_shm
