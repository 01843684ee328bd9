// SPDX-License-Identifier: BSD-3-Clause
// Products of small tiles that lie in scratch memory: the inner kernel of GEMM and attention.
#pragma once

#include <cstdint>

#include "backends/compute_kokkos/lanes.hpp"

namespace mylos::compute_kokkos {

inline constexpr int panel_rows = 4;
inline constexpr int panel_vectors = on_host ? 4 : 1;
inline constexpr int panel_columns = panel_vectors * width;

/// Two successive bf16 values along the dimension that a product sums over, the first in the low half.
/// `width` pairs fill a register.
struct Bf16Pair {
  std::uint32_t bits;
};

/// How many values along the summed dimension an element of a tile holds.
template <class E>
inline constexpr int group_size = std::is_same_v<E, Bf16Pair> ? 2 : 1;

/// c + a b.
KOKKOS_FORCEINLINE_FUNCTION Vec dot_add(float a, Vec b, Vec c) {
  return multiply_add(Vec(a), b, c);
}

#if defined(MYLOS_AVX512_LANES) && defined(__AVX512BF16__)

/// Whether bf16 tiles are multiplied directly; otherwise they are widened to fp32.
inline constexpr bool has_bf16_products = true;

using Bf16Pairs = __m512bh;

inline Bf16Pairs load(const Bf16Pair* from) {
  return std::bit_cast<Bf16Pairs>(_mm512_loadu_si512(from));
}

/// c + a.first b.first + a.second b.second, in fp32.
inline Vec dot_add(Bf16Pair a, Bf16Pairs b, Vec c) {
  __m512i pairs = _mm512_set1_epi32(static_cast<int>(a.bits));
#ifdef __clang__
  asm("" : "+v"(pairs));  // Clang 16 crashes if it knows that bf16 values are a broadcast
#endif
  const auto left = std::bit_cast<Bf16Pairs>(pairs);
  return std::bit_cast<Vec>(_mm512_dpbf16_ps(std::bit_cast<__m512>(c), left, b));
}

/// `width` pairs of values at the same place of two rows.
inline Bf16Pairs load_pairs(const bf16* first, const bf16* second) {
  Halves low;
  Halves high;
  std::memcpy(&low, first, sizeof(low));
  std::memcpy(&high, second, sizeof(high));
  return std::bit_cast<Bf16Pairs>(__builtin_convertvector(low, Words) |
                                  (__builtin_convertvector(high, Words) << 16U));
}

/// Stores `width` pairs of the lanes of `first` and `second`, rounded to bf16.
inline void store_pair(Bf16Pair* to, Vec first, Vec second) {
  const Words pairs = __builtin_convertvector(round_bf16(first), Words) |
                      (__builtin_convertvector(round_bf16(second), Words) << 16U);
  std::memcpy(to, &pairs, sizeof(pairs));
}

#else

inline constexpr bool has_bf16_products = false;

#endif

/// The type of the elements of a tile that is loaded from a tensor of T.
template <class T>
using TileElement = std::conditional_t<has_bf16_products && std::is_same_v<T, bf16>, Bf16Pair, float>;

/// Element (i, j) is data[i * row + j * column].
template <class E>
struct Tile {
  const E* data;
  int row;
  int column;
};

/// c (R, V vectors) = or += a (R, k groups) b (k groups, V vectors), with the sums in registers. Rows of b
/// and c have unit stride.
template <int R, int V, class E>
KOKKOS_FORCEINLINE_FUNCTION void panel_product(int k, Tile<E> a, const E* b, int b_row, float* c, int c_row,
                                               bool accumulate) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) sum[r][v] = accumulate ? load(c + r * c_row + v * width) : Vec(0.0F);
  }
  for (int p = 0; p < k; ++p) {
    decltype(load(b)) right[V];
    for (int v = 0; v < V; ++v) right[v] = load(b + v * width);
    for (int r = 0; r < R; ++r) {
      const E left = a.data[r * a.row];
      for (int v = 0; v < V; ++v) sum[r][v] = dot_add(left, right[v], sum[r][v]);
    }
    a.data += a.column;
    b += b_row;
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) store(c + r * c_row + v * width, sum[r][v]);
  }
}

/// c (m, n) = or += a (m, k groups) b (k groups, n). n is a multiple of `width`; rows of b and c have unit
/// stride.
template <class E>
KOKKOS_FUNCTION void tile_product(int m, int n, int k, Tile<E> a, const E* b, int b_row, float* c, int c_row,
                                  bool accumulate) {
  int j = 0;
  for (; j + panel_columns <= n; j += panel_columns) {
    int i = 0;
    for (; i + panel_rows <= m; i += panel_rows) {
      panel_product<panel_rows, panel_vectors>(k, Tile<E>{a.data + i * a.row, a.row, a.column}, b + j, b_row,
                                               c + i * c_row + j, c_row, accumulate);
    }
    for (; i < m; ++i) {
      panel_product<1, panel_vectors>(k, Tile<E>{a.data + i * a.row, a.row, a.column}, b + j, b_row,
                                      c + i * c_row + j, c_row, accumulate);
    }
  }
  for (; j < n; j += width) {
    int i = 0;
    for (; i + panel_rows <= m; i += panel_rows) {
      panel_product<panel_rows, 1>(k, Tile<E>{a.data + i * a.row, a.row, a.column}, b + j, b_row,
                                   c + i * c_row + j, c_row, accumulate);
    }
    for (; i < m; ++i) {
      panel_product<1, 1>(k, Tile<E>{a.data + i * a.row, a.row, a.column}, b + j, b_row, c + i * c_row + j,
                          c_row, accumulate);
    }
  }
}

}  // namespace mylos::compute_kokkos
