// SPDX-License-Identifier: BSD-3-Clause
// chrome_trace: a traced step as a file for Perfetto and chrome://tracing. The report reads a summary of the
// step from that file.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "core/trace/trace.hpp"
#include "io/report/step_diagram.hpp"

namespace mylos {

/// What the report shows of a traced step.
struct TraceSummary {
  StepProfile profile;    ///< of rank 0
  StepDiagram diagram{};  ///< without ranks if the step has one stage
};

/// A rank's events as the entries of a Trace Event Format array (Google, 2016), with the rank as the process
/// and the kind of event as the thread: metadata events that name these, and complete events with times in
/// microseconds.
std::string chrome_events(std::span<const TraceEvent> events, int rank);

/// Replaces `file` with the trace of a step: each rank's `events` and, under "otherData", `summary`.
void write_chrome_trace(const std::filesystem::path& file, std::span<const std::string> events,
                        const TraceSummary& summary);

/// The summary in a file that `write_chrome_trace` wrote; empty if the first line does not hold one.
std::optional<TraceSummary> read_summary(const std::filesystem::path& file);

}  // namespace mylos
