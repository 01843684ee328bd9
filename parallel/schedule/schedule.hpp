// SPDX-License-Identifier: BSD-3-Clause
// Schedule: what a rank does in a step, as data. TrainingStep executes it, planner and report read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mylos {

enum class ActionKind : std::uint8_t {
  forward,   ///< micro-batch `micro_batch` through the rank's blocks
  backward,  ///< the loss and its gradient, back through the blocks
  reduce,    ///< the gradients of the step become complete on their owners
  step,      ///< guard, optimizer, publication of the weights
};
inline constexpr int num_action_kinds = 4;

constexpr std::string_view name_of(ActionKind kind) {
  constexpr std::array<std::string_view, num_action_kinds> names = {"forward", "backward", "reduce", "step"};
  return names[static_cast<std::size_t>(kind)];
}

/// One thing a rank does.
struct Action {
  ActionKind kind = ActionKind::forward;
  int micro_batch = 0;
};

/// The actions of one rank.
struct Schedule {
  std::vector<Action> repeat;  ///< executed once a step
  int micro_batches = 1;

  /// Which of the activation slots a micro-batch uses: as many slots as micro-batches are ever in flight.
  std::vector<int> slots() const;
};

/// Gradient accumulation: forward and backward of each micro-batch in turn, then one reduction and one step.
Schedule accumulate(int micro_batches);

}  // namespace mylos
