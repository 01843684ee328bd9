// SPDX-License-Identifier: BSD-3-Clause
// MatrixExchange: which rank computes with which whole matrices of a unit, and the blocks that bring each
// matrix to that rank and its result back.
//
// The ranks of a group hold the same matrices, or parts of them: along some axes they divide them (tensor
// parallelism, ZeRO), along the others they have copies. Each matrix has one owner in the group. Among the
// ranks that divide the matrices as the owner does, it collects the parts and returns to each the elements of
// the result that this rank steps; each of them then broadcasts these to the ranks that step the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/layout/axis.hpp"
#include "core/layout/parameter_table.hpp"
#include "core/ops/matrix_operations.hpp"

namespace mylos {

/// What a rank steps of a unit, and how the others divide it.
struct SteppedUnit {
  UnitPart part;         ///< the rank's own
  AxisSet divided_axes;  ///< along these, ranks step different parts of the unit
  std::int64_t share =
      0;  ///< rank i along them steps elements [i share, (i + 1) share), as far as they exist
};

/// A piece of a part that holds elements of matrices, consecutive in the part: they are also consecutive,
/// from `place` on, in a buffer of the elements of all matrices in the part.
struct MatrixPiece {
  int parameter = 0;       ///< of the table
  std::int64_t begin = 0;  ///< within the part
  std::int64_t count = 0;
  std::int64_t place = 0;
  std::int64_t rows = 0, columns = 0;  ///< of each of its matrices
};

/// Matrices of one shape that a rank owns, one after the other.
struct MatrixStack {
  std::int64_t count = 0, rows = 0, columns = 0;
  std::int64_t begin = 0;  ///< within the buffer of all matrices that the rank owns of the unit
};

/// Blocks that are copied, and elements per rank of the group that are sent or received.
struct BlockCopy {
  std::vector<CopiedBlock> blocks;
  std::int64_t num_rows = 0;  ///< of all blocks

  void add(CopiedBlock block);
};

/// Messages to and from each of the ranks that divide the matrices.
struct MatrixMessages {
  std::vector<std::int64_t> sent, received;  ///< elements, by rank
  std::int64_t num_sent = 0, num_received = 0;
  BlockCopy pack;    ///< into the message of what is sent
  BlockCopy unpack;  ///< out of what is received (`is_from_other`) and what needs no message
};

/// Results in a buffer whose ranges ranks with copies broadcast to one another.
struct SharedResults {
  struct Range {
    int root = 0;  ///< of the copies, the rank whose result this is
    std::int64_t begin = 0, count = 0;
  };
  std::vector<Range> ranges;  ///< the same on all the copies; empty if there are none
  std::int64_t count = 0;     ///< of elements in all of them
  BlockCopy unpack;           ///< out of the buffer
};

struct MatrixExchange {
  AxisSet group;                    ///< divided and copies together
  AxisSet divided;                  ///< along these, ranks hold different parts of the matrices
  AxisSet copies;                   ///< along these, the same
  std::vector<MatrixPiece> pieces;  ///< of this rank's part
  std::int64_t num_elements = 0;    ///< of all pieces
  std::vector<MatrixStack> stacks;  ///< that this rank owns
  std::int64_t num_owned = 0;       ///< elements of all stacks
  bool collects = false;  ///< whether ranks send parts to owners; the same on all ranks of the group
  bool returns = false;   ///< whether owners send results; the same too
  MatrixMessages collection;
  MatrixMessages result;  ///< unpacked into the shared results, if there are some
  SharedResults shared;
};

/// The work that the ranks of each group own so far: what balances it.
using MatrixLoads = std::map<AxisSet, std::vector<double>>;

/// Returns the exchange of a unit's matrices for the rank at `coordinates`; without pieces and a group if the
/// unit has no matrices. Each matrix goes to the rank with the least work in `loads`, to which its work is
/// added; called for the same units in the same order, it decides the same on all ranks of a group.
MatrixExchange exchange_matrices(const ParameterTable& table, const SteppedUnit& unit,
                                 const Coordinates& coordinates, MatrixLoads& loads);

}  // namespace mylos
