// SPDX-License-Identifier: BSD-3-Clause
// StepConfig: the configuration of the step engine, which knows nothing of decks.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/dtype.hpp"
#include "core/model/parameters.hpp"
#include "core/model/recorder.hpp"
#include "core/ops/grad_guard.hpp"
#include "core/optim/lr_schedule.hpp"
#include "core/optim/optimizer.hpp"
#include "parallel/layout/parallel_layout.hpp"

namespace mylos {

/// The batch and the number formats of a step. Sample ranks are the ranks along `sample_axes`.
struct TrainConfig {
  std::int64_t global_batch = 0;  ///< sequences per step
  std::int64_t micro_batch = 0;   ///< sequences per forward pass of a rank
  std::int64_t accumulation = 0;  ///< micro-batches per step: global_batch / (micro_batch * sample ranks)
  std::int64_t seq_len = 0;       ///< T
  DType dtype = DType::fp32;      ///< of weights and activations
  DType grad_dtype = DType::fp32;
  float loss_scale = 1.0F;  ///< of the first step
  Recompute recompute = Recompute::none;
  std::uint64_t seed = 0;

  /// The number of samples from the start of one micro-batch of a rank to the start of the rank's next one:
  /// one micro-batch per sample rank.
  std::int64_t sample_stride() const { return global_batch / accumulation; }
  BatchShape shape() const { return {.batch = micro_batch, .seq = seq_len, .dtype = dtype}; }
};

struct StepConfig {
  ModelConfig model;
  TrainConfig train;
  ParallelLayout parallel;
  OptimizerConfig optimizer;
  LrScheduleConfig lr;
  GuardConfig guard;
  CacheConfig cache{};  ///< for generation and for the losses of texts of any length
  /// Record the GPU's work once and queue it as graphs; nothing: if the backend can.
  std::optional<bool> graphs = false;

  /// 1 / tokens of the global batch.
  float per_token() const {
    return static_cast<float>(1.0 / static_cast<double>(train.global_batch * train.seq_len));
  }
  /// The groups of ranks in which a run communicates: those of the layout and of the optimizer.
  std::vector<AxisSet> groups() const {
    std::vector<AxisSet> groups = parallel.groups();
    if (optimizer.kind == nullptr || optimizer.kind->matrices == nullptr) return groups;
    // Those that divide a unit's matrices, and those that hold the same (core/optim/matrix_exchange.hpp).
    const AxisSet parts = parallel.shard > 1 ? loss_axes.without({Axis::replicate}) : AxisSet();
    for (const AxisSet apart : {AxisSet{Axis::pipeline}, AxisSet{Axis::pipeline, Axis::expert}}) {
      const AxisSet divided = parts.with({Axis::tensor}).without(apart);
      groups.insert(groups.end(), {divided, all_axes.without(apart).without(divided)});
      if (model.experts.count == 0) break;
    }
    return groups;
  }
  /// The chunks into which the schedule divides the model.
  ModelCuts cuts() const { return {.chunks = parallel.scope(1).num_chunks(), .places = parallel.cuts}; }
  /// The rules of the versions of each unit's weights, of the whole model; empty unless the schedule is
  /// asynchronous.
  std::vector<VersionRule> rules_of_units() const {
    std::vector<VersionRule> rules;
    if (!parallel.schedule->is_asynchronous()) return rules;
    const std::vector<VersionRule> of_chunks = parallel.schedule->rules(parallel.scope(train.accumulation));
    rules.resize(cuts().units(model, {}).size());
    for (int chunk = 0; chunk < cuts().chunks; ++chunk) {
      for (const int unit : cuts().units(model, {chunk}))
        rules[static_cast<std::size_t>(unit)] = of_chunks[static_cast<std::size_t>(chunk)];
    }
    return rules;
  }
  /// The part of the model that the rank at `coordinates` holds.
  ParameterTable table(const Coordinates& coordinates) const {
    const bool is_apart = coordinates.ends_are_apart();
    ParameterTable whole = parameters_of(model, is_apart).local(coordinates, parallel.splits);
    if (cuts().chunks == 1) return whole;
    const std::set<int> held = parallel.held_chunks(coordinates);
    std::set<int> units = cuts().units(model, held);
    const bool has_tied_unit = is_apart && model.tied;
    if (has_tied_unit && coordinates.extent(Axis::embedding) > 1) units.insert(whole.num_units() - 1);
    return whole.only(units);
  }
  /// The configuration for recording the programs with which the rank at `coordinates` follows `schedule`.
  ProgramConfig programs(const Schedule& schedule, const Coordinates& coordinates) const {
    BatchShape shape = train.shape();
    if (parallel.splits.sequence) {
      shape.residual_parts = coordinates.extent(Axis::tensor);
      shape.residual_part = coordinates.index(Axis::tensor);
    }
    return {.shape = shape,
            .grad_dtype = train.grad_dtype,
            .recompute = train.recompute,
            .seed = train.seed,
            .gradient_scale = per_token(),
            .cuts = cuts(),
            .held = parallel.held_chunks(coordinates),
            .splits_backward = schedule.has(ActionKind::backward_weight),
            .cache = cache};
  }
};

}  // namespace mylos
