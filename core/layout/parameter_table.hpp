// SPDX-License-Identifier: BSD-3-Clause
// ParameterTable: lists every weight once. The optimizer, checkpoints, the exchange and the planner iterate
// over it.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/global_index.hpp"
#include "core/layout/axis.hpp"
#include "core/layout/box.hpp"

namespace mylos {

/// The initial values of a weight.
enum class Initialisation : std::uint8_t { normal, zeros, ones };

/// A named dimension of a weight's view, such as "heads" or "width".
struct Dimension {
  std::string_view name;
  std::int64_t extent = 1;
};

/// What each rank along an axis holds of a weight.
struct Placement {
  enum class Kind : std::uint8_t {
    replicated,  ///< all of it, and the same gradient
    partial,     ///< all of it, and one term of the gradient; the exchange sums the terms
    summed,      ///< all of it, and one term of the gradient; the step sums the terms before the update
    split,       ///< one part of it, along a dimension of the view
  };
  Kind kind = Kind::replicated;
  int dimension = -1;  ///< the split dimension of the view, for Kind::split
};

/// One weight, and the part of it that a rank holds.
struct Parameter {
  std::string name;                 ///< Hugging Face's name
  std::vector<std::int64_t> shape;  ///< of the whole weight, row-major, without padding
  /// The shape of the whole weight with some dimensions split into several: (C, 3C) as (C, 3, H, D).
  std::vector<Dimension> view;
  /// By axis. Along the pipeline axis, `summed` means on the stages with the first and the last chunk, and
  /// anything else on one stage.
  std::array<Placement, num_axes> placement{};
  /// The total number of rows that the parts of the weight have in memory is a multiple of this.
  std::int64_t row_multiple = 1;
  bool decay = false;    ///< subject to weight decay: two or more dimensions
  bool is_norm = false;  ///< weight or bias of a layernorm
  /// The weight of a product in a block: one matrix (I, O), or a stack of matrices along the dimension of the
  /// view that `stack` names. Optimizers may update matrices as a whole.
  bool is_matrix = false;
  std::string_view stack{};
  Initialisation initialisation = Initialisation::zeros;
  float stddev = 0.0F;  ///< of Initialisation::normal
  int unit = 0;

  // The rank's part.
  Box box;                       ///< of the view
  std::int64_t padded_rows = 0;  ///< extent of the leading dimension in memory
  std::int64_t offset = 0;       ///< first element in the unit's flat buffer
  int parts = 1;                 ///< ranks among which the weight is split
  int copies = 1;                ///< ranks that hold the same part
  /// Copies that are updated with the same gradient: those of ranks that differ only along axes of
  /// Kind::replicated and Kind::summed.
  int twins = 1;
  int twin = 0;  ///< this rank's number among its twins

  Placement along(Axis axis) const { return placement[static_cast<std::size_t>(axis)]; }
  bool is_split(Axis axis) const { return along(axis).kind == Placement::Kind::split; }
  /// Whether first and last chunk both use the weight: a tied matrix.
  bool is_on_both_ends() const { return along(Axis::pipeline).kind == Placement::Kind::summed; }
  std::vector<std::int64_t> view_shape() const;
  /// Returns the number of elements of the part without padding; these come first in memory.
  std::int64_t size() const { return box.size(); }
  std::int64_t padded_size() const;
  /// Returns the shape of the part: `shape` with the split dimensions divided.
  std::vector<std::int64_t> local_shape() const;
  /// Returns where the elements of the part lie in the whole weight.
  GlobalIndex global_index() const;
};

/// Parameters that are gathered, reduced, updated and stored together. They lie in one flat buffer, in the
/// order in which the backward pass completes their gradients.
struct Unit {
  std::string name;             ///< "embedding", "block 3", "head"
  std::vector<int> parameters;  ///< indices into the table, in buffer order
  std::int64_t size = 0;        ///< elements of the flat buffer, padding included
};

/// The elements [begin, begin + count) of a unit's flat buffer.
struct UnitPart {
  int unit = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// What the ranks along the tensor axis divide in addition to heads and feed-forward layers.
struct TensorSplits {
  bool vocab = false;     ///< the rows of the token embedding and of the head
  bool sequence = false;  ///< the residual stream: norms see only some of the rows
};

/// The dimension of a view that `TensorSplits::vocab` divides.
inline constexpr std::string_view vocab_dimension = "vocab";

/// The parameters and units of a model: the whole model or, from `local`, one rank's part.
class ParameterTable {
 public:
  /// The next parameters belong to a new unit.
  void begin_unit(const std::string& name);
  /// Adds a parameter to the last unit, after those that are there: the order is that in which the backward
  /// pass completes their gradients. The reference is valid until the next call.
  Parameter& add(const std::string& name, std::vector<std::int64_t> shape, std::vector<Dimension> view,
                 Initialisation initialisation, float stddev = 0.0F);
  /// Sets the placement along `axis` to a split of `dimension`, which `local` then divides.
  static void split(Parameter& parameter, Axis axis, std::string_view dimension);
  /// Sets the offsets and sizes of all units, once they are complete.
  void lay_out();

  /// Returns what the rank at `coordinates` holds. If the vocabulary is divided, it is padded first, so the
  /// last ranks may hold fewer of its rows, or none. Throws ExitCode::usage if any other split dimension
  /// cannot be divided evenly.
  ParameterTable local(const Coordinates& coordinates, const TensorSplits& splits = {}) const;

  /// Returns the table of some of the units, in their order: what a stage of a pipeline holds.
  ParameterTable only(const std::set<int>& units) const;

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Unit>& units() const { return units_; }
  const Unit& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  int num_units() const { return static_cast<int>(units_.size()); }
  const Parameter& find(std::string_view name) const;
  /// The axes of `loss_axes` along which the ranks hold terms of the unit's gradient: those that do not split
  /// its parameters, which are all split along the same ones.
  AxisSet term_axes(int unit) const;

  /// Returns the number of elements of all weights of the whole model, without padding.
  std::int64_t num_parameters() const;

  /// Parameters start at multiples of this many elements in flat buffers (128 bytes of bf16).
  static constexpr std::int64_t alignment = 64;

 private:
  /// Divides the rows of the matrix along the tensor axis. Every rank has the same number of rows in memory.
  static void split_rows(Parameter& parameter, const Coordinates& coordinates);

  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::int64_t elsewhere_ = 0;  // elements of the weights that `only` left out
};

/// The elements of a parameter that lie in a part of its unit: elements [begin, begin + count) of the rank's
/// part of the parameter, without padding. They start at `offset` within the part of the unit.
struct Piece {
  const Parameter& parameter;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t offset = 0;

  /// Returns this rank's share of the piece; the rank's twins have the other shares. Shares are as even as
  /// grains of 2^16 elements allow, and may be empty.
  Piece share() const;
  /// Returns where the elements of the piece lie in the whole parameter.
  GlobalIndex global_index() const;
  /// Returns the elements as boxes of `parameter.shape`, in memory that begins with the part of the unit.
  std::vector<PlacedBox> boxes() const;
};

/// Returns the matrices of a weight with `is_matrix`, as boxes of its shape: all of its last two dimensions
/// except those that the stack divides.
std::vector<Box> matrices_of(const Parameter& parameter);

/// Returns the pieces of a part, in the order of the flat buffer.
std::vector<Piece> pieces_of(const ParameterTable& table, const UnitPart& part);

}  // namespace mylos
