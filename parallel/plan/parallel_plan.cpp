// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/parallel_plan.hpp"

namespace mylos {

GridExtents ParallelPlan::extents() const {
  GridExtents extents;
  extents.tensor = static_cast<int>(tensor);
  extents.shard = static_cast<int>(shard);
  extents.replicate = static_cast<int>(data / shard);
  return extents;
}

std::vector<AxisSet> ParallelPlan::groups() const {
  std::vector<AxisSet> groups = {loss_axes, all_axes};
  if (tensor > 1) groups.emplace_back(AxisSet{Axis::tensor});
  if (shard > 1) groups.emplace_back(AxisSet{Axis::shard});
  if (shard > 1 && shard < data) groups.push_back(replica_axes);
  return groups;
}

std::int64_t ParallelPlan::world_size() const {
  const GridExtents e = extents();
  return std::int64_t{e.tensor} * e.context * e.expert * e.shard * e.replicate * e.pipeline;
}

}  // namespace mylos
