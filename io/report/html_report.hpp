// SPDX-License-Identifier: BSD-3-Clause
// html_report: a run as one HTML file that needs no network. It holds its style, its script, which draws the
// curves, and their data; everything else can be read without the script.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/trace/trace.hpp"
#include "io/metrics/metrics.hpp"
#include "io/report/step_diagram.hpp"

namespace mylos {

/// The content of a report. Tables may be empty, lack columns or hold values that are not finite.
struct ReportData {
  std::string title;
  /// /steps: step, loss (nats per token), learning_rate, gradient_norm, tokens (so far), tokens_per_second,
  /// mfu and hfu (fractions), skipped (0 or 1), loss_scale, payload_AXIS_OPERATION (bytes of rank 0), time_*
  /// (s, maximum over ranks; time_checkpoint and time_evaluation of rank 0), wait_AXIS (s, maximum over
  /// ranks), rank_time_* (s) and memory_peak_* (bytes), both as min, median and max over ranks.
  MetricsTable steps;
  MetricsTable evaluations;  ///< /eval: step, loss, accuracy (fraction), perplexity, tokens
  MetricsTable choices{};    ///< /choices: step, accuracy and normalised_accuracy (fractions), ...
  /// /launches: step, unix_time (s), ranks, threads, time_launch and time_restore (s); rows after the first
  /// are restarts.
  MetricsTable launches;
  MetricsTable checkpoints;  ///< /checkpoints: step, bytes, time_stall, time_write and time_verify (s)
  std::string deck_text;
  /// Names and values that describe the run and the machine. "status" is shown next to the title.
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<std::pair<std::string, double>> memory_bytes;  ///< categories and their bytes, of rank 0
  StepProfile profile;    ///< a traced step of rank 0; without operations if no step was traced
  StepDiagram diagram{};  ///< of the step of `profile`; without ranks if it has one stage
};

/// The content of the file: HTML that is also well-formed XML, in UTF-8. Curves are thinned to at most
/// 600 points that keep the extremes of every interval, so the size hardly depends on the length of the run.
std::string html_report(const ReportData& data);

}  // namespace mylos
