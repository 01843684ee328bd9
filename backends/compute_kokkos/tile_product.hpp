// SPDX-License-Identifier: BSD-3-Clause
// Products of small fp32 tiles that lie in scratch memory: the inner kernel of GEMM and attention.
#pragma once

#include "backends/compute_kokkos/lanes.hpp"

namespace mylos {

inline constexpr int panel_rows = 4;
inline constexpr int panel_vectors = on_host ? 4 : 1;
inline constexpr int panel_columns = panel_vectors * width;

/// An fp32 tile: element (i, j) is data[i * row + j * column].
struct Tile {
  const float* data;
  int row;
  int column;
};

/// c (R, V vectors) = or += a (R, k) b (k, V vectors), kept in registers. Rows of b and c have unit stride.
template <int R, int V>
KOKKOS_FORCEINLINE_FUNCTION void panel_product(int k, Tile a, const float* b, int b_row, float* c, int c_row,
                                               bool accumulate) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = accumulate ? load(c + r * c_row + v * width) : Vec(0.0F);
  }
  for (int p = 0; p < k; ++p) {
    Vec factor[V];
    for (int v = 0; v < V; ++v) factor[v] = load(b + v * width);
    for (int r = 0; r < R; ++r) {
      const Vec left(a.data[r * a.row]);
      for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(left, factor[v], sum[r][v]);
    }
    a.data += a.column;
    b += b_row;
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(c + r * c_row + v * width, sum[r][v]);
  }
}

/// c (m, n) = or += a (m, k) b (k, n); n a multiple of `width`, rows of b and c with unit stride.
inline KOKKOS_FUNCTION void tile_product(int m, int n, int k, Tile a, const float* b, int b_row, float* c,
                                         int c_row, bool accumulate) {
  int j = 0;
  for (; j + panel_columns <= n; j += panel_columns) {
    int i = 0;
    for (; i + panel_rows <= m; i += panel_rows) {
      panel_product<panel_rows, panel_vectors>(k, {a.data + i * a.row, a.row, a.column}, b + j, b_row,
                                               c + i * c_row + j, c_row, accumulate);
    }
    for (; i < m; ++i) {
      panel_product<1, panel_vectors>(k, {a.data + i * a.row, a.row, a.column}, b + j, b_row,
                                      c + i * c_row + j, c_row, accumulate);
    }
  }
  for (; j < n; j += width) {
    int i = 0;
    for (; i + panel_rows <= m; i += panel_rows) {
      panel_product<panel_rows, 1>(k, {a.data + i * a.row, a.row, a.column}, b + j, b_row, c + i * c_row + j,
                                   c_row, accumulate);
    }
    for (; i < m; ++i) {
      panel_product<1, 1>(k, {a.data + i * a.row, a.row, a.column}, b + j, b_row, c + i * c_row + j, c_row,
                          accumulate);
    }
  }
}

}  // namespace mylos
