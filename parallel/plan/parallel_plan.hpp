// SPDX-License-Identifier: BSD-3-Clause
// ParallelPlan: the checked combination of grid, exchange and schedule for one run.
#pragma once

#include <array>
#include <cstdint>

#include "core/layout/axis.hpp"
#include "core/param_values.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

struct ParallelPlan {
  std::int64_t data = 1;  ///< replicas
  const ExchangeKind* exchange = nullptr;
  const ScheduleKind* schedule = nullptr;
  ParamValues values;  ///< of the deck, section parallel at least

  GridExtents extents() const;
  std::int64_t world_size() const;
  /// Of rank 0, which holds no less than others.
  Coordinates first() const { return {extents(), static_cast<int>(world_size()), 0}; }
};

/// The groups of ranks that a step communicates in: those that compute terms of one loss, and all.
inline constexpr std::array step_groups = {loss_axes, all_axes};

}  // namespace mylos
