// SPDX-License-Identifier: BSD-3-Clause
// ArenaPlan: the offsets of buffers in one block of memory. Buffers that are never live at the same time may
// share memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory/device_buffer.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// An inclusive interval of ticks. A tick is a position in the order of execution.
struct LiveInterval {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Collects buffers with their live intervals and gives each an offset: largest first, at the lowest place
/// that no buffer live at the same time occupies (greedy by size, after Pisarchyk and Lee, 2020).
class ArenaPlan {
 public:
  /// Adds a buffer and returns its number. The intervals `live` are in ascending order.
  int add(std::size_t bytes, std::vector<LiveInterval> live);
  /// Computes all offsets; `bytes()` and `offset()` are valid afterwards.
  void solve();

  std::size_t bytes() const { return bytes_; }
  std::size_t offset(int buffer) const { return buffers_[static_cast<std::size_t>(buffer)].offset; }

 private:
  struct Buffer {
    std::size_t bytes = 0;
    std::vector<LiveInterval> live;
    std::size_t offset = 0;
    // The ticks are divided into 64 eras; bit i is set if the buffer is live in era i. The intervals of
    // buffers that share no bit need not be compared.
    std::uint64_t eras = 0;
  };
  static bool overlap(const Buffer& a, const Buffer& b);
  void find_eras();

  std::vector<Buffer> buffers_;
  std::size_t bytes_ = 0;
};

}  // namespace mylos
