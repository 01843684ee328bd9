// SPDX-License-Identifier: BSD-3-Clause
// StepRecord: the data about a finished step that become a row of metrics and a line on the console.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "app/launch/session.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/model/model_config.hpp"
#include "io/metrics/metrics.hpp"
#include "parallel/engine/training_step.hpp"
#include "parallel/health/traffic.hpp"

namespace mylos {

/// Measurements of a finished step, summarised over all ranks.
struct StepObservation {
  /// Of the whole model: loss, norm and whether a stage has skipped the step.
  float loss = 0.0F;
  float gradient_norm = 0.0F;
  bool is_skipped = false;
  double seconds_min = 0.0, seconds_median = 0.0, seconds_max = 0.0;
  PhaseSeconds phase_seconds{};                                    // maximum over ranks
  double idle_min = 0.0, idle_median = 0.0, idle_max = 0.0;        // seconds
  std::vector<double> wait_seconds;                                // by axes, maximum over ranks
  double memory_min = 0.0, memory_median = 0.0, memory_max = 0.0;  // bytes, of the ranks' peaks
  int stop_request = 0;                                            // of the highest rank that has one; else 0
  std::vector<float> statistics;                                   // of the whole model (RoutingStatistics)
};

/// The measurements of a step, on their way from all ranks to all ranks.
class StepGather {
 public:
  /// Sends the measurements of a finished step and `stop_request` (0: none). `stages` has a rank of each
  /// stage that has results of its own. Collective.
  StepGather(Session& session, const StepResults& results, int stop_request,
             const std::vector<int>& stages = {0});

  /// Whether those of all ranks are here.
  bool has_arrived() { return request_.test() && statistics_request_.test(); }
  /// Waits for those of all ranks; the result is the same on every rank.
  StepObservation take();

 private:
  std::vector<std::int64_t> own_, all_;  // the waits are last
  std::size_t ranks_ = 0;
  std::size_t waits_ = 0;
  std::vector<int> stages_;
  StepScalars scalars_;
  std::vector<float> statistics_;
  Request request_, statistics_request_;
};

struct StepRecord {
  std::int64_t step = 0;
  std::int64_t steps = 0;   ///< of the whole run
  std::int64_t tokens = 0;  ///< of the run up to and including this step
  double tokens_per_second = 0.0;
  /// Model FLOPs utilisation: `model_flops_per_token` times the tokens per second, as a fraction of the peak
  /// of all ranks together.
  double mfu = 0.0;
  /// Hardware FLOPs utilisation: the FLOPs that this rank's programs execute per second, recomputation
  /// included, as a fraction of its peak.
  double hfu = 0.0;
  StepScalars scalars;
  StepObservation seen;
  std::vector<std::string> wait_axes;  ///< of seen.wait_seconds: the labels of the groups
  std::vector<TrafficRow> traffic;     ///< of this rank
  double checkpoint_seconds = 0.0;     ///< since the previous record
  double evaluation_seconds = 0.0;
  std::vector<double> epochs;  ///< how often each source of [data] train has been read so far
  MetricsRow routing;          ///< the columns of routing_columns
};

/// Returns the name of the column for `StepRecord::epochs[source]`. Column names count sources from 1.
std::string epochs_column(std::size_t source);

/// Returns the columns about routers (docs/schema.md) for the sums of RoutingStatistics over a step; none if
/// no block routes tokens.
MetricsRow routing_columns(const ModelConfig& model, const TrainConfig& train,
                           const std::vector<float>& statistics);

/// Returns the row of the table `steps`; `ledger` supplies the memory by category.
MetricsRow metrics_row(const StepRecord& record, const MemoryLedger& ledger);

}  // namespace mylos
