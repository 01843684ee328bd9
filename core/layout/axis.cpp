// SPDX-License-Identifier: BSD-3-Clause
#include "core/layout/axis.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/join.hpp"

namespace mylos {

std::string name_of(AxisSet axes) {
  if (axes == all_axes) return "world";
  const bool data = axes.contains(Axis::shard) && axes.contains(Axis::replicate);
  std::string name;
  for (int i = 0; i <= num_axes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (!axes.contains(axis) || (data && axis == Axis::shard)) continue;
    if (!name.empty()) name += '+';
    name += data && axis == Axis::replicate ? "data" : name_of(axis);
  }
  return name.empty() ? "none" : name;
}

Coordinates::Coordinates(const GridExtents& extents, int world_size, int rank) {
  std::ranges::copy(extents.along, extents_.begin());
  extents_.back() = 1;
  const auto place = [](Axis axis) { return static_cast<std::size_t>(axis); };
  if (!extents.replicas.empty()) {
    first_replicas_ = {0};
    for (const int replicas : extents.replicas) first_replicas_.push_back(first_replicas_.back() + replicas);
    constexpr auto num_faster = static_cast<std::size_t>(Axis::replicate);
    static_assert(num_faster + 2 == num_axes, "the axes that count replicas are the slowest");
    int number = rank;
    int per_replica = 1;
    for (std::size_t i = 0; i < num_faster; ++i) {
      indices_[i] = number % extents_[i];
      number /= extents_[i];
      per_replica *= extents_[i];
    }
    const int stage =
        static_cast<int>(std::ranges::upper_bound(first_replicas_, number) - first_replicas_.begin()) - 1;
    const int needed = per_replica * first_replicas_.back();
    if (std::ranges::min(extents.replicas) < 1 || world_size != needed)
      fail(ExitCode::usage, "replicas need {} ranks, but {} were started", needed, world_size);
    extents_[place(Axis::replicate)] = extents.replicas[static_cast<std::size_t>(stage)];
    extents_[place(Axis::pipeline)] = static_cast<int>(extents.replicas.size());
    indices_[place(Axis::replicate)] = number - first_replicas_[static_cast<std::size_t>(stage)];
    indices_[place(Axis::pipeline)] = stage;
    last_stage_ = extent(Axis::pipeline) - 1;
    return;
  }
  std::int64_t needed = 1;
  for (const int extent : extents.along) {
    if (extent < 1)
      fail(ExitCode::usage, "an extent of the process grid is {}, but must be at least 1", extent);
    needed *= extent;
  }
  if (needed != world_size) {
    std::vector<std::string> factors;
    for (int i = 0; i < num_axes; ++i) {
      const auto axis = static_cast<Axis>(i);
      factors.push_back(fmt::format("{} {}", name_of(axis), extent(axis)));
    }
    fail(ExitCode::usage, "{} needs {} ranks, but {} were started", join(factors, " × "), needed, world_size);
  }
  for (std::size_t i = 0; i < extents_.size(); ++i) {
    indices_[i] = rank % extents_[i];
    rank /= extents_[i];
  }
  last_stage_ = extents.last_stage < 0 ? extent(Axis::pipeline) - 1 : extents.last_stage;
  ends_are_apart_ = extents.first_stage != last_stage_;
  if (ends_are_apart_ && (index(Axis::pipeline) == extents.first_stage || has_last_chunk())) {
    extents_.back() = 2;
    indices_.back() = has_last_chunk() ? 1 : 0;
  }
}

int Coordinates::extent(AxisSet axes) const {
  int product = 1;
  if (is_uneven() && axes.contains(Axis::replicate) && axes.contains(Axis::pipeline)) {
    product = first_replicas_.back();
    axes = axes.without({Axis::replicate, Axis::pipeline});
  }
  for (int i = 0; i <= num_axes; ++i) {
    if (axes.contains(static_cast<Axis>(i))) product *= extent(static_cast<Axis>(i));
  }
  return product;
}

int Coordinates::index(AxisSet axes) const {
  int position = 0;
  int stride = 1;
  const bool counts_replicas = is_uneven() && axes.contains(Axis::replicate) && axes.contains(Axis::pipeline);
  for (int i = 0; i <= num_axes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (!axes.contains(axis)) continue;
    if (counts_replicas && axis == Axis::replicate) continue;
    if (counts_replicas && axis == Axis::pipeline) {
      position += stride * (first_replicas_[static_cast<std::size_t>(index(axis))] + index(Axis::replicate));
      stride *= first_replicas_.back();
      continue;
    }
    position += stride * index(axis);
    stride *= extent(axis);
  }
  return position;
}

AxisSet Coordinates::used_axes() const {
  AxisSet used;
  for (int i = 0; i <= num_axes; ++i) {
    if (extent(static_cast<Axis>(i)) > 1) used = used.with({static_cast<Axis>(i)});
  }
  if (ends_are_apart_) used = used.with({Axis::embedding});
  if (is_uneven()) used = used.with({Axis::replicate});  // on every rank
  return used;
}

}  // namespace mylos
