// SPDX-License-Identifier: BSD-3-Clause
// ActivationPlan: where every activation lies in the arena, from the live intervals of the schedule's
// actions.
#pragma once

#include <memory>
#include <vector>

#include "core/memory/arena.hpp"
#include "core/model/block.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// Offsets for each in-flight slot: the residual stream between blocks, its gradient, the blocks' own
/// buffers, tokens.
class ActivationPlan {
 public:
  ActivationPlan(const std::vector<std::unique_ptr<Block>>& blocks, const BatchShape& shape,
                 std::int64_t width, const Schedule& schedule);

  std::size_t bytes() const { return arena_.bytes(); }
  int slot_of(int micro_batch) const { return slot_of_[static_cast<std::size_t>(micro_batch)]; }
  int num_slots() const { return static_cast<int>(slots_.size()); }

  std::size_t tokens(int slot) const { return offset(slots_[at(slot)].tokens); }
  std::size_t targets(int slot) const { return offset(slots_[at(slot)].targets); }
  std::size_t losses(int slot) const { return offset(slots_[at(slot)].losses); }
  std::size_t correct(int slot) const { return offset(slots_[at(slot)].correct); }
  /// The stream behind block `block`.
  std::size_t stream(int slot, std::size_t block) const { return offset(slots_[at(slot)].streams[block]); }
  std::size_t gradient(int slot) const { return offset(slots_[at(slot)].gradient); }
  std::size_t buffer(int slot, std::size_t block, std::size_t index) const {
    return offset(slots_[at(slot)].buffers[block][index]);
  }

 private:
  /// Numbers of arena buffers.
  struct Slot {
    int tokens = 0;
    int targets = 0;
    int losses = 0;
    int correct = 0;
    int gradient = 0;
    std::vector<int> streams;
    std::vector<std::vector<int>> buffers;
  };
  static std::size_t at(int slot) { return static_cast<std::size_t>(slot); }
  std::size_t offset(int buffer) const { return arena_.offset(buffer); }

  ArenaPlan arena_;
  std::vector<int> slot_of_;
  std::vector<Slot> slots_;
};

}  // namespace mylos
