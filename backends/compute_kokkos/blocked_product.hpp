// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices of any size, in tiles: a team packs blocks of the factors and multiplies them.
#pragma once

#include <string>

#include "backends/compute_kokkos/tile_product.hpp"
#include "core/ops/matrix_view.hpp"

namespace mylos::compute_kokkos {

/// A MatrixView with elements of type T.
template <class T>
struct Strided {
  T* data;
  std::int64_t row;
  std::int64_t column;
};

template <class T>
Strided<T> strided(const MatrixView& matrix) {
  require(matrix.dtype == dtype_of<std::remove_const_t<T>>(), "the matrix has this element type");
  return {static_cast<T*>(matrix.data), matrix.row, matrix.column};
}

// A thread's tile of the product and its packed blocks of the factors take 512 KiB, so that they fit in a
// second-level cache.
inline constexpr int block_rows = 128;
inline constexpr int block_columns = 256;
inline constexpr int block_depth = 256;
static_assert(block_rows % panel_rows == 0 && block_columns % panel_columns == 0);

/// to = from (rows, depth) in panels of `panel` rows, each (depth, panel); rows beyond `rows` are 0.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void pack(Strided<const T> from, int rows, int depth, int panel, float* to) {
  for (int first = 0; first < rows; first += panel) {
    const int count = rows - first < panel ? rows - first : panel;
    const T* in = from.data + first * from.row;
    if (from.row == 1 && count == panel && panel % width == 0) {
      for (int p = 0; p < depth; ++p) {
        for (int r = 0; r < panel; r += width) store(to + p * panel + r, load(in + p * from.column + r));
      }
    } else {
      // Packs short pieces of rows, so that the lines of `to` stay in the cache.
      constexpr int piece = 16;
      for (int p0 = 0; p0 < depth; p0 += piece) {
        const int end = p0 + piece < depth ? p0 + piece : depth;
        for (int r = 0; r < panel; ++r) {
          const T* row = in + r * from.row;
          for (int p = p0; p < end; ++p) {
            to[p * panel + r] = r < count ? static_cast<float>(row[p * from.column]) : 0.0F;
          }
        }
      }
    }
    to += static_cast<std::ptrdiff_t>(panel) * depth;
  }
}

/// One team's tile of a product, at most block_rows x block_columns, and its packed blocks.
class ProductTile {
 public:
  static std::size_t scratch_bytes() {
    return Scratch::shmem_size(block_rows * block_depth) + Scratch::shmem_size(block_depth * block_columns) +
           Scratch::shmem_size(block_rows * block_columns);
  }
  /// The policy for `teams` tiles.
  static TeamPolicy policy(std::int64_t teams) {
    return TeamPolicy(queue(), teams, 1).set_scratch_size(1, Kokkos::PerTeam(scratch_bytes()));
  }

  KOKKOS_FUNCTION ProductTile(const Member& member, int rows, int columns)
      : packed_a_(member.team_scratch(1), block_rows * block_depth),
        packed_b_(member.team_scratch(1), block_depth * block_columns),
        tile_(member.team_scratch(1), block_rows * block_columns),
        rows_(rows),
        columns_(columns) {}

  /// tile = (accumulate ? tile : 0) + a (rows, k) b (k, columns), summed in fp32; k > 0.
  template <class A, class B>
  KOKKOS_FUNCTION void multiply(std::int64_t k, Strided<const A> a, Strided<const B> b,
                                bool accumulate) const {
    for (std::int64_t p0 = 0; p0 < k; p0 += block_depth) {
      const int depth = static_cast<int>(k - p0 < block_depth ? k - p0 : block_depth);
      pack<A>({a.data + p0 * a.column, a.row, a.column}, rows_, depth, panel_rows, packed_a_.data());
      pack<B>({b.data + p0 * b.row, b.column, b.row}, columns_, depth, panel_columns, packed_b_.data());
      for (int j = 0; j < columns_; j += panel_columns) {
        for (int i = 0; i < rows_; i += panel_rows) {
          panel_product<panel_rows, panel_vectors>(
              depth, Tile<float>{packed_a_.data() + i * depth, 1, panel_rows}, packed_b_.data() + j * depth,
              panel_columns, tile_.data() + i * block_columns + j, block_columns, accumulate || p0 > 0);
        }
      }
    }
  }

  KOKKOS_FUNCTION void clear() const {
    for (int i = 0; i < rows_ * block_columns; ++i) tile_.data()[i] = 0.0F;
  }

  /// Calls store(row, Lanes of columns, value) for the values of the tile.
  template <class Store>
  KOKKOS_FUNCTION void for_each(const Store& store) const {
    for (int i = 0; i < rows_; ++i) {
      for (int j = 0; j < columns_; j += width) {
        const Lanes at{j, columns_ - j < width ? columns_ - j : width};
        store(i, at, load(tile_.data() + i * block_columns + j));
      }
    }
  }

 private:
  Scratch packed_a_, packed_b_, tile_;
  int rows_, columns_;
};

/// Calls store(row, Lanes of columns, value) for the values of a (m, k) b (k, n), summed in fp32.
template <class A, class B, class Store>
void blocked_product(const std::string& label, std::int64_t m, std::int64_t n, std::int64_t k,
                     Strided<const A> a, Strided<const B> b, Store store) {
  const std::int64_t tile_rows = (m + block_rows - 1) / block_rows;
  const std::int64_t tile_columns = (n + block_columns - 1) / block_columns;
  Kokkos::parallel_for(
      label, ProductTile::policy(tile_rows * tile_columns), KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t i0 = member.league_rank() / tile_columns * block_rows;
        const std::int64_t j0 = member.league_rank() % tile_columns * block_columns;
        const ProductTile tile(member, static_cast<int>(m - i0 < block_rows ? m - i0 : block_rows),
                               static_cast<int>(n - j0 < block_columns ? n - j0 : block_columns));
        tile.multiply<A, B>(k, {a.data + i0 * a.row, a.row, a.column},
                            {b.data + j0 * b.column, b.row, b.column}, false);
        tile.for_each([&](int i, Lanes at, Vec value) {
          store(i0 + i, Lanes{j0 + at.first, at.count}, value);
        });
      });
}

}  // namespace mylos::compute_kokkos
