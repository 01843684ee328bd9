// SPDX-License-Identifier: BSD-3-Clause
// WallClockLimit: when a run must stop so that its checkpoint is written before the time limit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mylos {

/// Allows for steps and a checkpoint that take twice as long as the slowest so far. Evaluations do not count,
/// because a stop request interrupts them. Reads no clock; all times are in seconds.
class WallClockLimit {
 public:
  /// `limit` counts from the launch; it is infinite if there is none. A stop request takes effect after at
  /// most `num_steps` more steps.
  WallClockLimit(double limit, std::int64_t num_parameters, std::size_t num_steps)
      : limit_(limit),
        num_steps_(static_cast<double>(num_steps)),
        checkpoint_guess_(1.0 + 12.0 * static_cast<double>(num_parameters) / slow_disk) {}

  void note_step(double seconds) { step_ = std::max(step_, seconds); }
  void note_checkpoint(double seconds) { checkpoint_ = std::max(checkpoint_, seconds); }
  /// A checkpoint is under way and has taken `seconds` so far: it takes at least as long.
  void note_unfinished_checkpoint(double seconds) { unfinished_ = std::max(unfinished_, seconds); }
  /// Training waits for `stall`, which may overlap the `write` of the checkpoint; `verify`, the time to read
  /// it back, follows.
  void note_checkpoint(double stall, double write, double verify) {
    note_checkpoint(std::max(stall, write) + verify);
  }

  /// Returns whether the run must stop, `elapsed` seconds after its launch.
  bool is_near(double elapsed) const {
    const double checkpoint = std::max(unfinished_, checkpoint_ > 0.0 ? checkpoint_ : checkpoint_guess_);
    return elapsed + 2.0 * (num_steps_ * step_ + checkpoint) + 1.0 > limit_;
  }

 private:
  static constexpr double slow_disk = 1e8;  // bytes per second

  double limit_;
  double num_steps_;
  // Used until a checkpoint has been timed: 1 s, plus the time to write 12 bytes per parameter.
  double checkpoint_guess_;
  double step_ = 0.0;
  double checkpoint_ = 0.0;
  double unfinished_ = 0.0;
};

}  // namespace mylos
