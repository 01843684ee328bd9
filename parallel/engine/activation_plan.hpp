// SPDX-License-Identifier: BSD-3-Clause
// ActivationPlan: places every activation in the arena, given what the programs of a schedule read and write.
#pragma once

#include <cstddef>
#include <vector>

#include "core/memory/arena.hpp"
#include "core/model/model_programs.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// One item in the order of execution: a program, or a message of one tensor.
struct Passage {
  const Program* program = nullptr;
  int slot = 0;               ///< of the micro-batch; micro-batches in flight have separate activations
  bool brings_tokens = true;  ///< tokens and targets are loaded before it
  int message = -1;           ///< if there is no program: the root that is sent or received
  Access access = Access::read;

  bool operator==(const Passage&) const = default;
};

/// The offsets of each slot's activations. A tick of the plan is an operation or a group of neighbouring
/// messages.
class ActivationPlan {
 public:
  ActivationPlan(const Roots& roots, const std::vector<Passage>& passages);

  std::size_t bytes() const { return arena_.bytes(); }
  int num_slots() const { return static_cast<int>(buffers_.size()); }
  /// The offset of an activation that the slot's programs use.
  std::size_t offset(int slot, int root) const {
    return arena_.offset(buffers_[static_cast<std::size_t>(slot)][static_cast<std::size_t>(root)]);
  }
  bool has(int slot, int root) const {
    return buffers_[static_cast<std::size_t>(slot)][static_cast<std::size_t>(root)] >= 0;
  }

 private:
  ArenaPlan arena_;
  // Buffers of the arena, by slot and root; -1 if the slot does not use the root.
  std::vector<std::vector<int>> buffers_;
};

/// The passages of training runs of every length up to the longest whose sequence of slots differs from that
/// of shorter runs, without passages that only repeat the preceding ones; then, on slot 0, evaluation and
/// generation.
std::vector<Passage> passages_of(const Schedule& schedule, const ModelPrograms& programs);

/// The program that runs for `action`.
const Program& program_of(const Action& action, const ModelPrograms& programs);
/// The root that `action` sends or receives.
int message_of(const Action& action, const ModelPrograms& programs);

}  // namespace mylos
