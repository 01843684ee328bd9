// SPDX-License-Identifier: BSD-3-Clause
// ProcessGrid: the ranks as a box with one direction for each axis of parallelism.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/communicator.hpp"
#include "parallel/health/traffic.hpp"

namespace mylos {

/// In rank order, the fastest first: neighbouring ranks, which share a node, differ in the tensor coordinate.
enum class Axis : std::uint8_t { tensor, context, expert, shard, replicate, pipeline };
inline constexpr int num_axes = 6;

constexpr std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, num_axes> names = {"tensor", "context",   "expert",
                                                            "shard",  "replicate", "pipeline"};
  return names[static_cast<std::size_t>(axis)];
}

/// A set of axes.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= 1U << static_cast<unsigned>(axis);
  }
  constexpr bool contains(Axis axis) const { return (bits_ >> static_cast<unsigned>(axis) & 1U) != 0; }
  constexpr AxisSet without(AxisSet others) const {
    AxisSet rest;
    rest.bits_ = bits_ & ~others.bits_;
    return rest;
  }
  constexpr auto operator<=>(const AxisSet&) const = default;

 private:
  unsigned bits_ = 0;
};

inline constexpr AxisSet data_axes = {Axis::shard, Axis::replicate};
inline constexpr AxisSet all_axes = {Axis::tensor, Axis::context,   Axis::expert,
                                     Axis::shard,  Axis::replicate, Axis::pipeline};

/// "tensor", "data" (shard and replicate), "tensor+data", "world" (all).
std::string name_of(AxisSet axes);

/// Ranks along each axis; data parallelism is replicate × shard.
struct GridExtents {
  int replicate = 1;
  int shard = 1;
  int tensor = 1;
  int pipeline = 1;
  int expert = 1;
  int context = 1;
};

/// Maps ranks to coordinates: rank = tensor + T (context + C (expert + E (shard + S (replicate + R
/// pipeline)))). Move-only, as it owns the communicators.
class ProcessGrid {
 public:
  /// Throws ExitCode::usage where the extents do not multiply to the size of `world`. `world`, `counter` and
  /// `recorder` (null: no record) must outlive the grid.
  ProcessGrid(Communicator& world, const GridExtents& extents, TrafficCounter& counter,
              FlightRecorder* recorder, bool host_buffers = true);

  int extent(Axis axis) const { return extents_[static_cast<std::size_t>(axis)]; }
  int coordinate(Axis axis) const { return coordinates_[static_cast<std::size_t>(axis)]; }
  /// The product of the extents of `axes`.
  int extent(AxisSet axes) const;
  /// The rank of this process in `group(axes)`: the same order as in the world.
  int coordinate(AxisSet axes) const;

  /// The ranks that differ from this one in `axes` only, counted under `name_of(axes)`. The first call for a
  /// set makes the communicator and is collective over the world.
  Communicator& group(AxisSet axes);
  Communicator& world() { return *world_; }

 private:
  Communicator* world_;
  TrafficCounter* counter_;
  FlightRecorder* recorder_;
  bool host_buffers_;
  std::array<int, num_axes> extents_;
  std::array<int, num_axes> coordinates_{};
  std::map<AxisSet, std::unique_ptr<Communicator>> groups_;
};

}  // namespace mylos
