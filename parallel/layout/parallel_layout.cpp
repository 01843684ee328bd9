// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/layout/parallel_layout.hpp"

namespace mylos {

GridExtents ParallelLayout::extents() const {
  return {.replicate = static_cast<int>(data / shard),
          .shard = static_cast<int>(shard),
          .tensor = static_cast<int>(tensor)};
}

std::vector<AxisSet> ParallelLayout::groups() const {
  std::vector<AxisSet> groups = {loss_axes, all_axes};
  if (tensor > 1) groups.emplace_back(AxisSet{Axis::tensor});
  if (shard > 1) groups.emplace_back(AxisSet{Axis::shard});
  if (shard > 1 && shard < data) groups.push_back(replica_axes);
  return groups;
}

}  // namespace mylos
