// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/process_grid.hpp"

#include <algorithm>

namespace mylos {

namespace {

/// The name of a group: that of its axes, and "data" also if one of the two data axes has one rank.
std::string label_of(AxisSet axes, AxisSet used) {
  const AxisSet data = axes.common(data_axes);
  return name_of(data != AxisSet{} && data == used.common(data_axes) ? axes.with(data_axes) : axes);
}

}  // namespace

std::vector<AxisSet> ProcessGrid::distinct(const Coordinates& coordinates, std::span<const AxisSet> groups) {
  std::vector<AxisSet> sets;
  for (const AxisSet group : groups) {
    const AxisSet set = group.common(coordinates.used_axes());
    if (std::ranges::find(sets, set) == sets.end()) sets.push_back(set);
  }
  return sets;
}

ProcessGrid::ProcessGrid(Communicator& world, const GridExtents& extents, std::span<const AxisSet> groups,
                         TrafficCounter& counter, FlightRecorder* recorder, bool host_buffers)
    : coordinates_(extents, world.size(), world.rank()) {
  for (const AxisSet axes : distinct(coordinates_, groups)) {
    groups_[axes] = std::make_unique<CountedCommunicator>(
        world.split(coordinates_.index(all_axes.without(axes)), coordinates_.index(axes)),
        label_of(axes, coordinates_.used_axes()), counter, recorder, host_buffers);
  }
}

Communicator& ProcessGrid::group(AxisSet axes) const {
  const auto found = groups_.find(axes.common(coordinates_.used_axes()));
  require(found != groups_.end(), "a group that the grid was made with");
  return *found->second;
}

}  // namespace mylos
