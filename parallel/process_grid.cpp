// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/process_grid.hpp"

#include <algorithm>
#include <utility>

#include "parallel/health/traced_communicator.hpp"

namespace mylos {

std::string ProcessGrid::label(const Coordinates& coordinates, AxisSet axes) {
  const AxisSet used = coordinates.used_axes();
  const AxisSet group = axes.common(used);
  const AxisSet data = group.common(data_axes);
  return name_of(data != AxisSet{} && data == used.common(data_axes) ? group.with(data_axes) : group);
}

std::vector<AxisSet> ProcessGrid::distinct(const Coordinates& coordinates, std::span<const AxisSet> groups) {
  std::vector<AxisSet> sets;
  for (const AxisSet group : groups) {
    const AxisSet set = group.common(coordinates.used_axes());
    if (std::ranges::find(sets, set) == sets.end()) sets.push_back(set);
  }
  return sets;
}

ProcessGrid::ProcessGrid(Communicator& world, const GridExtents& extents, std::span<const AxisSet> groups,
                         TrafficCounter& counter, FlightRecorder* recorder, bool host_buffers, Trace* trace)
    : coordinates_(extents, world.size(), world.rank()) {
  for (const AxisSet axes : distinct(coordinates_, groups)) {
    int color = coordinates_.index(all_axes.without(axes));
    if (axes.contains(Axis::embedding)) {
      const AxisSet stage = all_axes.without({Axis::pipeline});
      // A rank of neither end is alone.
      const bool is_alone = coordinates_.extent(axes) == 1;
      color = is_alone ? coordinates_.extent(stage) + world.rank() : coordinates_.index(stage);
    }
    auto group = world.split(color, coordinates_.index(axes));
    if (axes != AxisSet{}) {  // a group of one rank sends nothing
      const std::string name = label(coordinates_, axes);
      group = std::make_unique<CountedCommunicator>(std::move(group), name, counter, recorder, host_buffers);
      if (trace != nullptr) group = std::make_unique<TracedCommunicator>(std::move(group), *trace, name);
    }
    groups_[axes] = std::move(group);
  }
}

std::vector<AxisSet> ProcessGrid::groups() const {
  std::vector<AxisSet> sets;
  for (const auto& [axes, group] : groups_) sets.push_back(axes);
  return sets;
}

Communicator& ProcessGrid::group(AxisSet axes) const {
  const auto found = groups_.find(axes.common(coordinates_.used_axes()));
  require(found != groups_.end(), "a group for which the grid was made");
  return *found->second;
}

}  // namespace mylos
