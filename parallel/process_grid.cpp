// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/process_grid.hpp"

namespace mylos {

std::string name_of(AxisSet axes) {
  if (axes == all_axes) return "world";
  const bool data = axes.contains(Axis::shard) && axes.contains(Axis::replicate);
  std::string name;
  for (int i = 0; i < num_axes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (!axes.contains(axis) || (data && axis == Axis::shard)) continue;
    if (!name.empty()) name += '+';
    name += data && axis == Axis::replicate ? "data" : name_of(axis);
  }
  return name.empty() ? "none" : name;
}

ProcessGrid::ProcessGrid(Communicator& world, const GridExtents& extents, TrafficCounter& counter,
                         FlightRecorder* recorder, bool host_buffers)
    : world_(&world),
      counter_(&counter),
      recorder_(recorder),
      host_buffers_(host_buffers),
      extents_{extents.tensor, extents.context,   extents.expert,
               extents.shard,  extents.replicate, extents.pipeline} {
  std::int64_t needed = 1;
  for (const int extent : extents_) {
    if (extent < 1) fail(ExitCode::usage, "the extents of the process grid are at least 1, not {}", extent);
    needed *= extent;
  }
  if (needed != world.size()) {
    fail(ExitCode::usage,
         "data {} (replicate {} × shard {}) × tensor {} × pipeline {} × expert {} × context {} needs {} "
         "ranks, but {} "
         "were started",
         std::int64_t{extents.replicate} * extents.shard, extents.replicate, extents.shard, extents.tensor,
         extents.pipeline, extents.expert, extents.context, needed, world.size());
  }
  int rest = world.rank();
  for (std::size_t i = 0; i < extents_.size(); ++i) {
    coordinates_[i] = rest % extents_[i];
    rest /= extents_[i];
  }
}

int ProcessGrid::extent(AxisSet axes) const {
  int product = 1;
  for (int i = 0; i < num_axes; ++i) {
    if (axes.contains(static_cast<Axis>(i))) product *= extent(static_cast<Axis>(i));
  }
  return product;
}

int ProcessGrid::coordinate(AxisSet axes) const {
  int position = 0;
  int stride = 1;
  for (int i = 0; i < num_axes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (!axes.contains(axis)) continue;
    position += stride * coordinate(axis);
    stride *= extent(axis);
  }
  return position;
}

Communicator& ProcessGrid::group(AxisSet axes) {
  std::unique_ptr<Communicator>& made = groups_[axes];
  if (!made) {
    made = std::make_unique<CountedCommunicator>(
        world_->split(coordinate(all_axes.without(axes)), coordinate(axes)), name_of(axes), *counter_,
        recorder_, host_buffers_);
  }
  return *made;
}

}  // namespace mylos
