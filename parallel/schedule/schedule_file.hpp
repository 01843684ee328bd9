// SPDX-License-Identifier: BSD-3-Clause
// Schedules as text: the compute-only CSV of torch.distributed.pipelining (`_PipelineScheduleRuntime`,
// `_load_csv`). A row per stage has a cell per pass: chunk, kind and micro-batch, such as 0F0, 1B3 (whole
// backward pass), 2I1 (input gradient) and 2W1 (weight gradients). Empty cells and spaces mean nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// The schedules of all stages, without messages. The rows place the chunks. Throws ExitCode::usage, naming
/// row and cell (from 1), if a cell is unknown, a chunk lies on two rows or on none, a pass is missing, comes
/// twice, is divided and whole, or comes before its input, or if rows wait for each other.
std::vector<Schedule> parse_schedule(std::string_view text);

/// The letter of a pass: F, B, I or W.
char letter_of(ActionKind kind);

/// Writes the passes of all stages, without empty cells.
std::string schedule_text(const std::vector<Schedule>& stages);

}  // namespace mylos
