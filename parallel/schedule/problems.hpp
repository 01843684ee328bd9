// SPDX-License-Identifier: BSD-3-Clause
// find_problems: checks the rules that schedules must obey.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// The first 20 problems of the schedules of ranks that work together; empty if there are none. `ranks[r]` is
/// the schedule of stage r. Each chunk lies on one stage. Every micro-batch of every step must pass once
/// forward and once backward through each chunk, in an order in which each pass finds its inputs. Gradients
/// must be reduced and applied once, and the gradients of two steps must not mix. Weights must not change
/// between the passes of a micro-batch, unless the schedule tolerates stale weights. Messages must meet their
/// receivers without deadlock: consecutive messages of a rank are posted together; each channel keeps its
/// messages in order, and has neither tags nor buffers (as in NCCL). `is_tied`: the first and the last chunk
/// share a matrix; on one rank, the last one writes its gradient and the first adds to it and completes it.
std::vector<std::string> find_problems(std::span<const Schedule> ranks, bool is_tied = true);

}  // namespace mylos
