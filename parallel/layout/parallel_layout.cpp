// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/layout/parallel_layout.hpp"

namespace mylos {

GridExtents ParallelLayout::extents() const {
  return {.replicate = static_cast<int>(data / shard),
          .shard = static_cast<int>(shard),
          .tensor = static_cast<int>(tensor),
          .pipeline = static_cast<int>(pipeline)};
}

Schedule ParallelLayout::schedule_of(const Coordinates& coordinates, std::int64_t micro_batches) const {
  const ScheduleScope scope{.micro_batches = static_cast<int>(micro_batches),
                            .stages = coordinates.extent(Axis::pipeline),
                            .values = &values};
  return schedule->make(scope)[static_cast<std::size_t>(coordinates.index(Axis::pipeline))];
}

std::vector<AxisSet> ParallelLayout::groups() const {
  std::vector<AxisSet> groups = {loss_axes, all_axes};
  if (tensor > 1) groups.emplace_back(AxisSet{Axis::tensor});
  if (pipeline > 1) groups.emplace_back(AxisSet{Axis::pipeline});
  if (shard > 1) groups.push_back(loss_axes.without({Axis::replicate}));
  if (shard > 1 && shard < data) groups.emplace_back(AxisSet{Axis::replicate});
  return groups;
}

}  // namespace mylos
