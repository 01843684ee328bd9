// SPDX-License-Identifier: BSD-3-Clause
// schedule_passes: schedules made by playing a step. A stage that becomes free takes the most urgent pass
// whose inputs exist (list scheduling: Graham, "Bounds for Certain Multiprocessing Anomalies", 1966).
#pragma once

#include <span>
#include <vector>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// The next pass of one kind through one chunk of a stage.
struct StagePass {
  ActionKind kind = ActionKind::forward;
  int place = 0;  ///< of the chunk among those of the stage
};

/// Forward passes and those for input gradients, the most urgent first. Weight gradients are computed while a
/// stage can run none of these, the oldest first.
using PassOrder = std::vector<StagePass>;

/// Returns schedules with split backward passes, without messages, for chunk c on stage `stages[c]`. It plays
/// the step, with the pass times of the scope, in each of the orders and returns the shortest; of equally
/// short ones, that with the fewest activations in flight.
///
/// Passes of a kind and chunk come in the order of micro-batches; of a micro-batch, the weight gradients of
/// the later chunk come first. A stage with k chunks has at most k times `in_flight` activations, each from
/// the forward pass of a chunk to the end of its backward_weight. If `in_flight` is larger than the number of
/// stages, smaller limits are tried as well, so that more memory never makes a step longer. Takes time in
/// proportion to the number of passes.
std::vector<Schedule> schedule_passes(const ScheduleScope& scope, std::span<const int> stages,
                                      std::span<const PassOrder> orders);

}  // namespace mylos
