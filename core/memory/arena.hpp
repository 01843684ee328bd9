// SPDX-License-Identifier: BSD-3-Clause
// Arena: one block of memory whose slots are shared by buffers that are never alive at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory/device_buffer.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Inclusive span of ticks, the positions in the order of execution.
struct LiveInterval {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Collects buffers with their live intervals and gives each an offset: largest first, at the lowest place
/// that no buffer alive at the same time occupies (greedy by size; Pisarchyk and Lee, 2020).
class ArenaPlan {
 public:
  /// Returns the buffer's number.
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
    // The ticks are divided into 64 eras; bit i is set if the buffer is alive in era i. Most pairs of buffers
    // share no bit, so their intervals need no comparison.
    std::uint64_t eras = 0;
  };
  static bool overlap(const Buffer& a, const Buffer& b);
  void find_eras();

  std::vector<Buffer> buffers_;
  std::size_t bytes_ = 0;
};

}  // namespace mylos
