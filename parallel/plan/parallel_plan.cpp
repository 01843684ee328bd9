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

}  // namespace mylos
