// SPDX-License-Identifier: BSD-3-Clause
#include "app/step_record.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "core/base/statistics.hpp"

namespace mylos {

StepObservation observe_step(Session& session, const StepResults& results, int stop_request) {
  constexpr int num_observed = 4 + num_step_phases;  // stop request, step, peak memory, idle time, phases
  const auto nanoseconds = [](double s) { return static_cast<std::int64_t>(s * 1e9); };
  std::vector<std::int64_t> own = {stop_request, nanoseconds(results.seconds),
                                   static_cast<std::int64_t>(session.ledger().peak()),
                                   nanoseconds(results.idle_seconds)};
  for (const double seconds : results.phase_seconds) own.push_back(nanoseconds(seconds));

  const auto ranks = static_cast<std::size_t>(session.size());
  std::vector<std::int64_t> all(own.size() * ranks);
  session.host_world()
      .all_gather({own.data(), DType::int64, {num_observed}},
                  {all.data(), DType::int64, {static_cast<std::int64_t>(all.size())}})
      .host_wait();

  std::vector<std::int64_t> column(ranks);
  const auto take = [&](std::size_t field) {
    for (std::size_t r = 0; r < ranks; ++r) column[r] = all[r * own.size() + field];
  };
  StepObservation seen;
  take(0);
  for (const std::int64_t wish : column) {
    if (wish != 0) seen.stop_request = static_cast<int>(wish);
  }
  take(1);
  seen.seconds_min = 1e-9 * static_cast<double>(std::ranges::min(column));
  seen.seconds_max = 1e-9 * static_cast<double>(std::ranges::max(column));
  seen.seconds_median = 1e-9 * median({column.begin(), column.end()});
  take(2);
  seen.memory_min = static_cast<double>(std::ranges::min(column));
  seen.memory_max = static_cast<double>(std::ranges::max(column));
  seen.memory_median = median({column.begin(), column.end()});
  take(3);
  seen.idle_min = 1e-9 * static_cast<double>(std::ranges::min(column));
  seen.idle_max = 1e-9 * static_cast<double>(std::ranges::max(column));
  seen.idle_median = 1e-9 * median({column.begin(), column.end()});
  for (std::size_t phase = 0; phase < num_step_phases; ++phase) {
    take(4 + phase);
    seen.phase_seconds[phase] = 1e-9 * static_cast<double>(std::ranges::max(column));
  }
  return seen;
}

std::string epochs_column(std::size_t source) {
  return fmt::format("epochs_{}", source + 1);
}

MetricsRow metrics_row(const StepRecord& record, const MemoryLedger& ledger) {
  const StepScalars& scalars = record.scalars;
  const StepObservation& seen = record.seen;
  const auto phase = [&](StepPhase p) { return seen.phase_seconds[static_cast<std::size_t>(p)]; };
  std::uint64_t calls = 0;
  std::uint64_t payload_bytes = 0;
  for (const TrafficRow& row : record.traffic) {
    calls += row.calls;
    payload_bytes += row.payload_bytes;
  }
  MetricsRow row = {{"step", static_cast<double>(record.step)},
                    {"loss", scalars.loss},
                    {"learning_rate", scalars.learning_rate},
                    {"gradient_norm", scalars.gradient_norm},
                    {"skipped", scalars.skip != 0 ? 1.0 : 0.0},
                    {"loss_scale", scalars.loss_scale},
                    {"tokens", static_cast<double>(record.tokens)},
                    {"communication_calls", static_cast<double>(calls)},
                    {"communication_bytes", static_cast<double>(payload_bytes)},
                    {"tokens_per_second", record.tokens_per_second},
                    {"mfu", record.mfu},
                    {"hfu", record.hfu},
                    // All ranks evaluate and write checkpoints together, so this rank's times stand for all.
                    {"time_step", seen.seconds_max + record.checkpoint_seconds + record.evaluation_seconds},
                    {"time_data", phase(StepPhase::data)},
                    {"time_forward", phase(StepPhase::forward)},
                    {"time_backward", phase(StepPhase::backward)},
                    {"time_communication", phase(StepPhase::communication)},
                    {"time_optimizer", phase(StepPhase::optimizer)},
                    {"time_checkpoint", record.checkpoint_seconds},
                    {"time_evaluation", record.evaluation_seconds},
                    {"rank_time_min", seen.seconds_min},
                    {"rank_time_median", seen.seconds_median},
                    {"rank_time_max", seen.seconds_max},
                    {"idle_time_min", seen.idle_min},
                    {"idle_time_median", seen.idle_median},
                    {"idle_time_max", seen.idle_max},
                    {"memory_peak_min", seen.memory_min},
                    {"memory_peak_median", seen.memory_median},
                    {"memory_peak_max", seen.memory_max}};
  for (std::size_t i = 0; i < record.epochs.size(); ++i) row.emplace_back(epochs_column(i), record.epochs[i]);
  for (int i = 0; i < num_memory_categories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    row.emplace_back(fmt::format("memory_{}", name_of(category)),
                     static_cast<double>(ledger.current(category)));
  }
  for (const TrafficRow& traffic : record.traffic) {
    row.emplace_back(fmt::format("payload_{}_{}", traffic.axis, name_of(traffic.operation)),
                     static_cast<double>(traffic.payload_bytes));
  }
  return row;
}

}  // namespace mylos
