// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/step_record.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <source_location>

#include <fmt/core.h>

#include "core/base/statistics.hpp"
#include "core/communication/call_site.hpp"
#include "core/model/routing_statistics.hpp"

namespace mylos {

namespace {

enum Field : std::uint8_t { stop_request, seconds, peak_memory, idle, phases };
constexpr std::size_t num_common = phases + num_step_phases;
// Of stages that have results of their own.
constexpr std::size_t loss = num_common;
constexpr std::size_t norm = loss + 1;
constexpr std::size_t skip = norm + 1;
constexpr std::size_t num_of_stages = skip + 1;

}  // namespace

StepGather::StepGather(Session& session, const StepResults& results, int request,
                       const std::vector<int>& stages)
    : own_((stages.size() > 1 ? num_of_stages : num_common) + results.wait_seconds.size()),
      ranks_(static_cast<std::size_t>(session.size())),
      waits_(results.wait_seconds.size()),
      stages_(stages),
      scalars_(results.scalars),
      statistics_(results.statistics) {
  const auto nanoseconds = [](double s) { return static_cast<std::int64_t>(s * 1e9); };
  own_[stop_request] = request;
  own_[seconds] = nanoseconds(results.seconds);
  own_[peak_memory] = static_cast<std::int64_t>(session.ledger().peak());
  own_[idle] = nanoseconds(results.idle_seconds);
  if (stages.size() > 1) {
    own_[loss] = std::bit_cast<std::int32_t>(results.scalars.loss);
    own_[norm] = std::bit_cast<std::int32_t>(results.scalars.gradient_norm);
    own_[skip] = results.scalars.skip;
  }
  for (std::size_t phase = 0; phase < num_step_phases; ++phase)
    own_[phases + phase] = nanoseconds(results.phase_seconds[phase]);
  std::ranges::transform(results.wait_seconds, own_.end() - static_cast<std::ptrdiff_t>(waits_), nanoseconds);
  all_.resize(own_.size() * ranks_);
  // Stages that do not wait for each other are some micro-batches apart.
  const CallSite site{.program = "measurements of a step",
                      .where = std::source_location::current(),
                      .is_awaited_late = stages.size() > 1};
  std::optional<CallSiteScope> scope;
  if (stages.size() > 1) scope.emplace(site);
  request_ = session.host_world().all_gather({own_.data(), DType::int64, {std::ssize(own_)}},
                                             {all_.data(), DType::int64, {std::ssize(all_)}});
  if (statistics_.empty()) return;
  statistics_request_ = session.host_world().all_reduce(
      {statistics_.data(), DType::fp32, {std::ssize(statistics_)}}, ReduceOp::sum);
}

StepObservation StepGather::take() {
  request_.host_wait();
  statistics_request_.host_wait();
  std::vector<std::int64_t> column(ranks_);
  const auto take_field = [&](std::size_t field) {
    for (std::size_t r = 0; r < ranks_; ++r) column[r] = all_[r * own_.size() + field];
  };
  StepObservation seen;
  std::vector<StepScalars> parts;
  if (stages_.size() == 1) parts.push_back(scalars_);  // the same on all ranks
  for (std::size_t stage = 0; stage < stages_.size() && stages_.size() > 1; ++stage) {
    const std::int64_t* first = all_.data() + static_cast<std::size_t>(stages_[stage]) * own_.size();
    const auto real = [&](std::size_t field) {
      return std::bit_cast<float>(static_cast<std::int32_t>(first[field]));
    };
    StepScalars& part = parts.emplace_back();
    part.loss = real(loss);
    part.gradient_norm = real(norm);
    part.skip = static_cast<std::int32_t>(first[skip]);
  }
  const StepScalars model = merged(parts);
  seen.loss = model.loss;
  seen.gradient_norm = model.gradient_norm;
  seen.is_skipped = model.skip != 0;
  seen.statistics = std::move(statistics_);
  take_field(stop_request);
  for (const std::int64_t wish : column) {
    if (wish != 0) seen.stop_request = static_cast<int>(wish);
  }
  take_field(seconds);
  seen.seconds_min = 1e-9 * static_cast<double>(std::ranges::min(column));
  seen.seconds_max = 1e-9 * static_cast<double>(std::ranges::max(column));
  seen.seconds_median = 1e-9 * median({column.begin(), column.end()});
  take_field(peak_memory);
  seen.memory_min = static_cast<double>(std::ranges::min(column));
  seen.memory_max = static_cast<double>(std::ranges::max(column));
  seen.memory_median = median({column.begin(), column.end()});
  take_field(idle);
  seen.idle_min = 1e-9 * static_cast<double>(std::ranges::min(column));
  seen.idle_max = 1e-9 * static_cast<double>(std::ranges::max(column));
  seen.idle_median = 1e-9 * median({column.begin(), column.end()});
  for (std::size_t phase = 0; phase < num_step_phases; ++phase) {
    take_field(phases + phase);
    seen.phase_seconds[phase] = 1e-9 * static_cast<double>(std::ranges::max(column));
  }
  for (std::size_t field = own_.size() - waits_; field < own_.size(); ++field) {
    take_field(field);
    seen.wait_seconds.push_back(1e-9 * static_cast<double>(std::ranges::max(column)));
  }
  return seen;
}

std::string epochs_column(std::size_t source) {
  return fmt::format("epochs_{}", source + 1);
}

MetricsRow routing_columns(const ModelConfig& model, const TrainConfig& train,
                           const std::vector<float>& statistics) {
  MetricsRow row;
  if (statistics.empty()) return row;
  const RoutingStatistics places(model);
  const auto sum = [&](const RoutingStatistics::Range& range, std::int64_t i) {
    return static_cast<double>(statistics[static_cast<std::size_t>(range.begin + i)]);
  };
  const auto batch = static_cast<double>(train.global_batch);
  double balance = 0.0, z = 0.0, dropped = 0.0, pairs = 0.0, largest = 0.0;
  double predictor_loss = 0.0, predicted = 0.0, hits = 0.0, tokens = 0.0;
  MetricsRow loads;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const bool is_routed = model.depths.are_in(layer);
    if (model.experts.are_in(layer)) {
      const RoutingStatistics::Range own = places.experts(layer);
      const double seen =
          batch * static_cast<double>(is_routed ? model.depths.tokens(train.seq_len) : train.seq_len);
      const double of_layer = seen * static_cast<double>(model.experts.per_token);
      balance += sum(own, 0) / batch;
      z += sum(own, 1) / seen;
      dropped += sum(own, 2);
      pairs += of_layer;
      for (std::int64_t expert = 0; expert < model.experts.count; ++expert) {
        const double load = sum(own, 3 + expert) * static_cast<double>(model.experts.count) / of_layer;
        largest = std::max(largest, load);
        loads.emplace_back(fmt::format("load_{}_{}", layer, expert), load);
      }
    }
    if (is_routed) {
      const RoutingStatistics::Range own = places.depths(layer);
      const double seen = batch * static_cast<double>(train.seq_len);
      predictor_loss += sum(own, 0) / seen;
      predicted += sum(own, 1);
      hits += sum(own, 2);
      tokens += seen;
    }
  }
  if (pairs > 0.0)
    row = {{"balance_loss", balance},
           {"router_z_loss", z},
           {"dropped_share", dropped / pairs},
           {"largest_load", largest}};
  if (tokens > 0.0) {
    row.emplace_back("predictor_loss", predictor_loss);
    row.emplace_back("predicted_share", predicted / tokens);
    row.emplace_back("predictor_hits", hits / tokens);
  }
  row.insert(row.end(), loads.begin(), loads.end());
  return row;
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
  for (std::size_t i = 0; i < record.wait_axes.size(); ++i)
    row.emplace_back(fmt::format("wait_{}", record.wait_axes[i]), seen.wait_seconds[i]);
  for (std::size_t i = 0; i < record.epochs.size(); ++i) row.emplace_back(epochs_column(i), record.epochs[i]);
  row.insert(row.end(), record.routing.begin(), record.routing.end());
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
