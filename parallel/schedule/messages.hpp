// SPDX-License-Identifier: BSD-3-Clause
// with_messages: adds the messages to the schedules of all stages.
#pragma once

#include <span>
#include <vector>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// Adds a message wherever neighbouring chunks lie on different stages, to the schedules of all stages, which
/// have none. `times` are those of the passes, by chunk of the model (empty: equal). Throws ExitCode::usage
/// if a pass would wait forever for another.
///
/// Every stage posts its side of every message in one order, that of the times at which a simulation produces
/// the tensors, and of stages at the same time. A send follows its pass. A receive comes before the first
/// pass of its stage that ends later than the tensor is produced: it is posted before the data arrive, but
/// not earlier than the pass during which they do. Messages with no pass between them are posted together.
///
/// This cannot deadlock, even if channels have neither tags nor buffers and a stage does not go on before all
/// messages that it posted together have met. Otherwise consider, of the messages that never meet, the first
/// in the order. A stage that does not post it waits for a message posted before, which is an earlier one, or
/// for the input of a pass that comes before. That pass ends no later than the message's tensor is produced
/// and takes some time, so its input was produced earlier, and its message, too, comes earlier in the order
/// and was posted before the pass. Each channel carries its messages in the same order at both ends.
///
/// If the steps of the schedules overlap, each pass is followed by the send of its result and the receive of
/// the next pass's input, which are posted together.
///
/// A message is awaited where its tensor is next used, or its memory written.
std::vector<Schedule> with_messages(const std::vector<Schedule>& stages,
                                    std::span<const PassTimes> times = {});

}  // namespace mylos
