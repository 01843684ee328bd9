// SPDX-License-Identifier: BSD-3-Clause
// ParallelPlan: the checked combination of grid, exchange and schedule for one run, and what is made from it.
// The one place that knows strategies by name.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "core/memory/memory_ledger.hpp"
#include "parallel/exchange/ddp.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/process_grid.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

struct ParallelPlan {
  std::int64_t data = 1;  ///< replicas
  std::string exchange;   ///< "ddp"
  DdpMode ddp_mode = DdpMode::bucketed;
  double bucket_mb = 25.0;  ///< MiB
  std::string schedule;     ///< "accumulate"

  GridExtents extents() const;
  std::int64_t world_size() const;
};

/// The groups of ranks that a step communicates in: those that compute terms of one loss, and all.
inline constexpr std::array step_groups = {loss_axes, all_axes};

/// The element types of an exchange, and whether it holds gradients (false for evaluation and generation).
struct ExchangeTypes {
  DType compute = DType::fp32;
  DType gradient = DType::fp32;
  bool gradients = true;
};

/// Throws ExitCode::internal for a name that the deck's check let through.
Schedule make_schedule(const ParallelPlan& plan, std::int64_t accumulation);
/// Collective. `backend`, `ledger`, `table` and `grid` outlive the exchange.
std::unique_ptr<GradientExchange> make_exchange(const ParallelPlan& plan, const ExchangeTypes& types,
                                                ComputeBackend& backend, MemoryLedger& ledger,
                                                const ParameterTable& table, const ProcessGrid& grid);

}  // namespace mylos
