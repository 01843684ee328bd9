// SPDX-License-Identifier: BSD-3-Clause
// ParallelLayout: the checked combination of grid, exchange and schedule for one run.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/layout/axis.hpp"
#include "core/layout/parameter_table.hpp"
#include "core/param_values.hpp"
#include "parallel/exchange/exchange.hpp"
#include "parallel/layout/axis_kinds.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

struct ParallelLayout {
  std::int64_t tensor = 1;    ///< ranks that divide the matrices of the blocks
  TensorSplits splits{};      ///< what else these ranks divide
  std::int64_t data = 1;      ///< ranks that read different samples
  std::int64_t expert = 1;    ///< neighbouring data ranks that divide the experts
  std::int64_t pipeline = 1;  ///< stages

  /// Ranks of each stage that take micro-batches in turn, if their numbers are unequal; then `data` is 1.
  std::vector<int> replicas{};
  std::int64_t chunks = 1;           ///< parts of the model per stage, unless the schedule has its own number
  std::int64_t emulated_stages = 1;  ///< of an asynchronous schedule, on ranks that hold the whole model
  std::vector<int> cuts{};  ///< the first blocks of chunks 1, 2, ... (ModelCuts); empty: as even as possible
  std::vector<int> placement{};    ///< the stages of the chunks; empty: as the schedule says
  std::vector<PassTimes> times{};  ///< by chunk, for the order of passes and messages; empty: all equal
  std::int64_t in_flight = 0;      ///< ScheduleScope::in_flight
  std::string schedule_file{};     ///< the content of parallel.schedule_file
  /// Neighbouring data ranks that divide one copy of what the exchange divides: a multiple of `expert`, or 1.
  std::int64_t shard = 1;
  const ExchangeKind* exchange = nullptr;
  const ScheduleKind* schedule = nullptr;
  ParamValues values;  ///< of the deck; contains at least section parallel

  /// What the key of an axis says; 1 if neither the layout nor `values` has it.
  std::int64_t extent_of(const AxisKind& kind) const;
  GridExtents extents() const;
  /// What schedules of a step of `micro_batches` are made from.
  ScheduleScope scope(std::int64_t micro_batches) const;
  /// The stage of each chunk of the model.
  std::vector<int> stages_of_chunks() const {
    return placement.empty() ? schedule->stages_of_chunks(scope(1)) : placement;
  }
  /// The chunks that the rank at `coordinates` holds.
  std::set<int> held_chunks(const Coordinates& coordinates) const;
  /// What all stages do with a step of `micro_batches` per rank along the data axis, messages included; of an
  /// asynchronous pipeline what each replica does, by `list_of`. Throws ExitCode::usage if the
  /// lists of several chunks have a problem (find_problems).
  std::vector<Schedule> schedules(std::int64_t micro_batches, bool is_tied = true) const;
  /// The most steps that a rank of an asynchronous pipeline begins before one has ended.
  int most_ahead(std::int64_t micro_batches) const;
  /// Whether the stages go on without waiting for each other's updates.
  bool is_asynchronous() const { return pipeline > 1 && schedule->is_asynchronous(); }
  /// The ranks that exchange the messages of a step, by number of their list.
  AxisSet message_axes() const {
    return schedule->is_asynchronous() && (data > 1 || !replicas.empty()) ? sample_axes.with({Axis::pipeline})
                                                                          : AxisSet{Axis::pipeline};
  }
  int list_of(const Coordinates& coordinates) const {
    return coordinates.index(schedule->is_asynchronous() ? sample_axes.with({Axis::pipeline})
                                                         : AxisSet{Axis::pipeline});
  }
  int replicas_of(int stage) const {
    return replicas.empty() ? static_cast<int>(data) : replicas[static_cast<std::size_t>(stage)];
  }
  /// The number of the first replica of a stage, counted stage by stage; of the number of stages, that of
  /// all.
  int first_replica(int stage) const {
    int first = 0;
    for (int s = 0; s < stage; ++s) first += replicas_of(s);
    return first;
  }
  /// The ranks of a stage that share the work on the same samples.
  std::int64_t ranks_per_replica() const;
  /// The first rank of a stage; of the number of stages, the number of ranks.
  std::int64_t first_rank(int stage) const { return ranks_per_replica() * first_replica(stage); }
  std::int64_t world_size() const { return first_rank(static_cast<int>(pipeline)); }
  /// The groups of ranks in which a run communicates: the ranks that compute terms of one loss, all ranks,
  /// the ranks along the pipeline axis and each axis of `same_loss_axes`, and the groups of the exchange.
  std::vector<AxisSet> groups() const;
  Coordinates coordinates(int rank) const { return {extents(), static_cast<int>(world_size()), rank}; }
};

}  // namespace mylos
