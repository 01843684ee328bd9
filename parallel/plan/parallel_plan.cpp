// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/parallel_plan.hpp"

namespace mylos {

GridExtents ParallelPlan::extents() const {
  GridExtents extents;
  extents.replicate = static_cast<int>(data);
  return extents;
}

std::int64_t ParallelPlan::world_size() const {
  const GridExtents e = extents();
  return std::int64_t{e.tensor} * e.context * e.expert * e.shard * e.replicate * e.pipeline;
}

Schedule make_schedule(const ParallelPlan& plan, std::int64_t accumulation) {
  if (plan.schedule == "accumulate") return accumulate(static_cast<int>(accumulation));
  fail(ExitCode::internal, "no schedule \"{}\"", plan.schedule);
}

std::unique_ptr<GradientExchange> make_exchange(const ParallelPlan& plan, const ExchangeTypes& types,
                                                ComputeBackend& backend, MemoryLedger& ledger,
                                                const ParameterTable& table, const ProcessGrid& grid) {
  if (plan.exchange != "ddp") fail(ExitCode::internal, "no exchange \"{}\"", plan.exchange);
  DdpConfig config;
  config.mode = plan.ddp_mode;
  config.bucket_bytes = static_cast<std::int64_t>(plan.bucket_mb * 1024.0 * 1024.0);
  config.compute_type = types.compute;
  config.gradient_type = types.gradient;
  config.gradients = types.gradients;
  return std::make_unique<Ddp>(backend, ledger, table, config, grid.group(loss_axes));
}

}  // namespace mylos
