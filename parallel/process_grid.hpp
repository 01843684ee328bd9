// SPDX-License-Identifier: BSD-3-Clause
// ProcessGrid: the communicators of a rank's groups in the grid of ranks that the axes of parallelism span.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/communication/communicator.hpp"
#include "core/layout/axis.hpp"
#include "core/trace/trace.hpp"
#include "parallel/health/traffic.hpp"

namespace mylos {

/// Owns the communicators; move-only.
class ProcessGrid {
 public:
  /// Makes the communicators of `groups` in the order given, which must be the same on all ranks. Collective.
  /// Axes with one rank are ignored, so sets that differ only by such axes share a communicator. Throws
  /// ExitCode::usage if an extent is less than 1 or their product is not the size of `world`. `world`,
  /// `counter`, `recorder` and `trace` must outlive the grid; `recorder` and `trace` may be null.
  ProcessGrid(Communicator& world, const GridExtents& extents, std::span<const AxisSet> groups,
              TrafficCounter& counter, FlightRecorder* recorder, bool host_buffers = true,
              Trace* trace = nullptr);

  const Coordinates& coordinates() const { return coordinates_; }
  /// The ranks that differ from this one only along `axes`, in the order of the world. `axes` is a set that
  /// the constructor was given, or differs from such a set only by axes with one rank.
  Communicator& group(AxisSet axes) const;
  /// The sets of axes with more than one rank each that have communicators, in an order that all ranks have.
  std::vector<AxisSet> groups() const;

  /// The name under which the traffic of the group of `axes` is counted: the names of its axes with more than
  /// one rank. The data axes together are named "data", even if one of the two has only one rank.
  static std::string label(const Coordinates& coordinates, AxisSet axes);

  /// The sets of axes for which communicators are made: `groups` without the axes that have one rank, each
  /// set once.
  static std::vector<AxisSet> distinct(const Coordinates& coordinates, std::span<const AxisSet> groups);

 private:
  Coordinates coordinates_;
  std::map<AxisSet, std::unique_ptr<Communicator>> groups_;
};

}  // namespace mylos
