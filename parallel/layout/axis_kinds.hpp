// SPDX-License-Identifier: BSD-3-Clause
// AxisKind: what decks, checks and plans know of an axis of the grid that a deck key sets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/layout/axis.hpp"
#include "core/param_spec.hpp"

namespace mylos {

struct ParallelLayout;

/// One constant per axis. `axis_traits` says what its ranks compute, hence whether they read the same
/// samples.
struct AxisKind {
  Axis axis;
  ParamSpec key;  ///< of section parallel: an integer, the extent
  /// Whether the number of ranks is a multiple of the extent. If not, the axis divides the data ranks.
  bool multiplies_ranks = true;
  const char* divided = nullptr;  ///< key of an integer that the extent must divide, if there is one
  /// Where layouts keep the extent; null: nowhere but in the deck's values.
  std::int64_t ParallelLayout::*member = nullptr;
  /// What the plan says of a layout in which the extent is more than 1; null: name and extent.
  std::string (*text)(const ParallelLayout& layout) = nullptr;
};

/// All axes with a key, in the order of their keys. That of the replicate axis, the data ranks, says how many
/// ranks read different samples; the expert and the shard axis divide these.
std::span<const AxisKind* const> axis_kinds();

/// The axes whose extents multiply to the number of ranks, without some.
std::vector<const AxisKind*> rank_factors(AxisSet left_out = {});

/// The axes that parallel.replicas replaces. The ranks along the other axes that multiply the number of ranks
/// work on the same samples in the same stage.
inline constexpr AxisSet replica_axes = {Axis::replicate, Axis::pipeline};

/// The layout as the plan shows it: "tensor 2, vocab x data 4, expert 2 x pipeline 3, 1f1b".
std::string axes_text(const ParallelLayout& layout);

}  // namespace mylos
