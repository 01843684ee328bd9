// SPDX-License-Identifier: BSD-3-Clause
// Axes of parallelism, and the place of a rank along them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mylos {

/// The axes in rank order, the fastest-varying first. A group along the tensor axis therefore consists of
/// consecutive ranks, which usually share a node. The replicate and the pipeline axis are the slowest.
enum class Axis : std::uint8_t {
  tensor,
  context,
  expert,
  shard,
  replicate,
  pipeline,
  /// No axis of the grid: of the ranks along the pipeline axis, those with the first and with the last chunk
  /// of the model, which both hold a tied matrix (Megatron-LM's embedding group).
  embedding,
};
inline constexpr int num_axes = static_cast<int>(Axis::embedding);

/// What the ranks along an axis compute of a step's loss.
enum class LossTerms : std::uint8_t {
  same,           ///< the same terms, or parts of them, from the same samples
  of_positions,   ///< terms of different positions of the same samples
  of_samples,     ///< terms of different samples
  of_last_chunk,  ///< terms only on the ranks with the last chunk of the model
};

struct AxisTraits {
  std::string_view name;
  LossTerms terms;
};

/// By axis.
inline constexpr AxisTraits axis_traits[] = {
    {"tensor", LossTerms::same},
    {"context", LossTerms::of_positions},
    {"expert", LossTerms::of_samples},
    {"shard", LossTerms::of_samples},
    {"replicate", LossTerms::of_samples},
    {"pipeline", LossTerms::of_last_chunk},
    {"embedding", LossTerms::of_last_chunk},
};
static_assert(std::size(axis_traits) == num_axes + 1);

constexpr std::string_view name_of(Axis axis) {
  return axis_traits[static_cast<std::size_t>(axis)].name;
}

/// A set of axes.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= 1U << static_cast<unsigned>(axis);
  }
  constexpr bool contains(Axis axis) const { return (bits_ >> static_cast<unsigned>(axis) & 1U) != 0; }
  constexpr AxisSet with(AxisSet others) const { return AxisSet(bits_ | others.bits_); }
  constexpr AxisSet common(AxisSet others) const { return AxisSet(bits_ & others.bits_); }
  constexpr AxisSet without(AxisSet others) const { return AxisSet(bits_ & ~others.bits_); }
  constexpr auto operator<=>(const AxisSet&) const = default;

 private:
  constexpr explicit AxisSet(unsigned bits) : bits_(bits) {}

  unsigned bits_ = 0;
};

/// The axes of the grid whose ranks compute such terms.
constexpr AxisSet axes_with(LossTerms terms) {
  AxisSet axes;
  for (int i = 0; i < num_axes; ++i) {
    if (axis_traits[i].terms == terms) axes = axes.with({static_cast<Axis>(i)});
  }
  return axes;
}

inline constexpr AxisSet data_axes = {Axis::shard, Axis::replicate};
/// The ranks along these axes read different samples.
inline constexpr AxisSet sample_axes = axes_with(LossTerms::of_samples);
/// The ranks along these axes compute different terms of the step's loss, from different samples or
/// positions. For every weight that is not split along these axes, each rank computes one term of the
/// gradient; the gradient is the sum of these terms.
inline constexpr AxisSet loss_axes = sample_axes.with(axes_with(LossTerms::of_positions));
/// The ranks along these axes compute the same terms of the loss, and hold the same of every weight that is
/// not split along them.
inline constexpr AxisSet same_loss_axes = axes_with(LossTerms::same);
inline constexpr AxisSet all_axes = loss_axes.with(same_loss_axes).with(axes_with(LossTerms::of_last_chunk));

/// Returns a name such as "tensor", "data" (shard and replicate), "tensor+data", "world" (all) or "none".
std::string name_of(AxisSet axes);

/// The number of ranks along each axis: 1 unless it is given, as in {{Axis::tensor, 2}, {Axis::shard, 4}}.
struct GridExtents {
  constexpr GridExtents() { along.fill(1); }
  constexpr GridExtents(std::initializer_list<std::pair<Axis, int>> extents) : GridExtents() {
    for (const auto& [axis, extent] : extents) (*this)[axis] = extent;
  }
  constexpr int operator[](Axis axis) const { return along[static_cast<std::size_t>(axis)]; }
  constexpr int& operator[](Axis axis) { return along[static_cast<std::size_t>(axis)]; }

  std::array<int, num_axes> along{};
  /// Of an asynchronous pipeline whose stages have unequal numbers of replicas: those numbers, which replace
  /// the extents of the replicate and the pipeline axis. The ranks of a stage follow one another.
  std::vector<int> replicas{};
  // The stages with the first and the last chunk of the model.
  int first_stage = 0;
  int last_stage = -1;  ///< -1: the last one
};

/// A rank's place in the grid: rank = tensor + T (context + C (expert + ... (replicate + R pipeline))), where
/// T, C, ... and R are the extents of the axes. If the stages have unequal numbers of replicas, replicate + R
/// pipeline is replaced by the number of the replica, counted stage by stage; R is then that of the rank's
/// own stage. The default is a grid of one rank.
class Coordinates {
 public:
  Coordinates() { extents_.fill(1); }
  /// Throws ExitCode::usage if an extent is less than 1 or their product is not `world_size`.
  Coordinates(const GridExtents& extents, int world_size, int rank);

  int extent(Axis axis) const { return extents_[static_cast<std::size_t>(axis)]; }
  int index(Axis axis) const { return indices_[static_cast<std::size_t>(axis)]; }
  /// Returns the number of ranks that differ from this rank along `axes` only, this rank included.
  int extent(AxisSet axes) const;
  /// Whether the stages have unequal numbers of replicas.
  bool is_uneven() const { return !first_replicas_.empty(); }
  /// Then the number of a stage's first replica, counted stage by stage.
  int first_replica(int stage) const { return first_replicas_[static_cast<std::size_t>(stage)]; }
  /// Ranks that read different samples of an evaluation, and this rank's number among them. If the stages
  /// have unequal numbers of replicas, only the first of each takes part.
  int num_readers() const { return is_uneven() ? 1 : extent(sample_axes); }
  int reader() const { return is_uneven() ? 0 : index(sample_axes); }
  /// Whether this rank has the results of an evaluation: it has the last chunk and takes part.
  bool has_results() const { return has_last_chunk() && (!is_uneven() || index(Axis::replicate) == 0); }
  /// Whether the first and the last chunk of the model lie on different ranks.
  bool ends_are_apart() const { return ends_are_apart_; }
  /// The stage with the last chunk, and whether this rank is on it.
  int last_stage() const { return last_stage_; }
  bool has_last_chunk() const { return index(Axis::pipeline) == last_stage_; }
  /// Returns the position of this rank among the ranks that `extent(axes)` counts, in rank order.
  int index(AxisSet axes) const;
  /// Returns the axes that have more than one rank, and Axis::embedding if some ranks have such a group.
  AxisSet used_axes() const;

 private:
  std::array<int, num_axes + 1> extents_{};
  std::array<int, num_axes + 1> indices_{};
  std::vector<int> first_replicas_;  // by stage, counted stage by stage, with the end; empty if all are equal
  bool ends_are_apart_ = false;
  int last_stage_ = 0;
};

}  // namespace mylos
