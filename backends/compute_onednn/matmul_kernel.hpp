// SPDX-License-Identifier: BSD-3-Clause
// MatmulKernel: Matmul's loops for one instruction set and one type of the factors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/dtype.hpp"
#include "core/ops/matrix_view.hpp"

namespace mylos::compute_onednn {

/// See Matmul::multiply.
struct MatmulOperands {
  std::int64_t m, n, k;
  MatrixView a, b;
  const void* bias;  ///< of b's type, or null
  MatrixView c;
  bool accumulate;
  void* column_sums;  ///< of c's type, or null
};

/// The tile of sums that a kernel computes at a time, and the form of its operands.
struct MatmulTile {
  std::int64_t rows;     ///< of a, whose sums stay in registers
  std::int64_t columns;  ///< of a panel of b: a multiple of the columns whose sums stay in registers
  /// Values along the summed dimension that fill 4 bytes of a packed operand: 2 if pairs are multiplied.
  std::int64_t group;
  std::int64_t k_multiple;  ///< blocks of the summed dimension are rounded up to a multiple of it
  std::int64_t most_k;      ///< longest block of the summed dimension
};

/// How a product is divided into parts, at most one per thread. A part has blocks of rows and takes one group
/// of column panels after another. If there are several groups per part, a thread that is slowed down takes
/// fewer groups. The summed dimension is divided into blocks of k.
struct MatmulDivision {
  MatmulDivision(const MatmulTile& tile, std::int64_t m, std::int64_t n, std::int64_t k, bool packs_rows,
                 int threads);

  static constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

  int parts() const { return row_parts * column_parts; }
  /// Floats of a part: sums of tiles and of columns, two panels of `b`, packed blocks of rows of `a`.
  std::int64_t part_floats() const {
    return sums + group * tile.columns + 2 * panel_size() + packed_tiles * packed_stride();
  }
  /// Floats of a panel and, in the packed blocks of `a`, between rows and between tiles. Rows that are a
  /// cache line longer than a power of two do not compete for the same cache sets.
  std::int64_t panel_size() const { return k_block / tile.group * tile.columns; }
  std::int64_t packed_row() const { return k_block / tile.group + line; }
  std::int64_t packed_stride() const { return tile.rows * packed_row(); }
  /// One counter per part of the rows, on its own cache line: the groups of panels that were taken.
  std::int64_t counter_floats() const { return row_parts * line; }
  std::size_t bytes() const {
    return static_cast<std::size_t>(counter_floats() + parts() * part_floats()) * sizeof(float);
  }

  static constexpr std::int64_t line = 16;  ///< floats of a cache line

  MatmulTile tile;
  bool packs_rows;  ///< all rows of `a` are packed; otherwise only the rows after the last full tile
  std::int64_t row_blocks, panels, k_blocks, k_block;
  int row_parts = 1, column_parts = 1;
  std::int64_t group = 1;  ///< panels whose sums are kept at a time
  std::int64_t sums;       ///< floats
  std::int64_t packed_tiles;
};

struct MatmulKernel {
  MatmulTile tile;
  /// Computes a part of the product: takes groups of panels until all are taken. `scratch` belongs to the
  /// part; the parts with the same rows share `groups_taken`.
  void (*multiply)(const MatmulOperands& operands, const MatmulDivision& division, int row_part,
                   float* scratch, std::int64_t* groups_taken);
};

/// Null for types that the instruction set has no kernel for.
const MatmulKernel* avx2_matmul(DType type);
const MatmulKernel* avx512_matmul(DType type);
const MatmulKernel* avx512_bf16_matmul(DType type);

}  // namespace mylos::compute_onednn
