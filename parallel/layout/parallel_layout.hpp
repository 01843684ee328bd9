// SPDX-License-Identifier: BSD-3-Clause
// ParallelLayout: the checked combination of grid, exchange and schedule for one run.
#pragma once

#include <cstdint>
#include <vector>

#include "core/layout/axis.hpp"
#include "core/layout/parameter_table.hpp"
#include "core/param_values.hpp"
#include "parallel/exchange/exchange.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

struct ParallelLayout {
  std::int64_t tensor = 1;    ///< ranks that divide the matrices of the blocks
  TensorSplits splits{};      ///< what else these ranks divide
  std::int64_t data = 1;      ///< ranks that read different samples
  std::int64_t pipeline = 1;  ///< stages
  std::vector<int> cuts{};  ///< the first blocks of chunks 1, 2, ... (ModelCuts); empty: as even as possible
  std::int64_t shard = 1;   ///< neighbouring data ranks that divide one copy of what the exchange divides
  const ExchangeKind* exchange = nullptr;
  const ScheduleKind* schedule = nullptr;
  ParamValues values;  ///< of the deck; contains at least section parallel

  GridExtents extents() const;
  /// What the stage at `coordinates` does with a step of `micro_batches`.
  Schedule schedule_of(const Coordinates& coordinates, std::int64_t micro_batches) const;
  std::int64_t world_size() const { return tensor * data * pipeline; }
  /// The groups of ranks in which a run communicates: the ranks that compute terms of one loss, all ranks,
  /// the ranks along the tensor and pipeline axes, and the groups of the exchange.
  std::vector<AxisSet> groups() const;
  Coordinates coordinates(int rank) const { return {extents(), static_cast<int>(world_size()), rank}; }
};

}  // namespace mylos
