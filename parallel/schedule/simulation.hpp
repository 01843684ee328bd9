// SPDX-License-Identifier: BSD-3-Clause
// simulate: plays the schedules of all stages on a clock.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// What a message between stages takes, in the unit of PassTimes. It occupies its link for `seconds` and
/// arrives `alpha` later. The messages from one stage to another follow one another, in the order in which
/// they are produced.
struct MessageTime {
  double alpha = 0.0;
  double seconds = 0.0;
};

struct Simulation {
  struct Interval {
    double begin = 0.0;
    double end = 0.0;
  };
  struct Stage {
    std::vector<Interval> actions;  ///< by index in the stage's schedule
    double busy = 0.0;              ///< time in passes
    /// The most pairs of a micro-batch and a chunk whose activations are kept at one time: from the forward
    /// pass to the last pass, which is `backward` or `backward_weight`.
    int activations = 0;
  };
  /// An action that waits forever for a pass.
  struct StuckAction {
    std::size_t stage = 0;
    std::size_t index = 0;
  };

  std::vector<Stage> stages;
  double makespan = 0.0;
  /// The first action of the first stage that does not come to its end; nothing if all do.
  std::optional<StuckAction> stuck;

  /// The part of the makespan in which a stage has no pass.
  double idle_share(std::size_t stage) const { return 1.0 - stages[stage].busy / makespan; }
};

/// Plays schedules once: `stages[s]` is that of stage s, or of a replica that has some of the micro-batches,
/// `times` those of the passes by chunk of the model (empty: each part of a pass takes 1). A forward pass
/// waits for that of the previous chunk, a backward pass for that of the next chunk and its own forward pass,
/// weight gradients for their `backward_input`. Messages follow from this: those in the lists, reductions and
/// updates take no time. An update of an asynchronous pipeline waits for the reductions of all replicas of
/// its chunk, other actions for nothing. The passes must be of the schedules' micro-batches and chunks.
Simulation simulate(std::span<const Schedule> stages, std::span<const PassTimes> times = {},
                    const MessageTime& message = {});

}  // namespace mylos
