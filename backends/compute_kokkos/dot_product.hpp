// SPDX-License-Identifier: BSD-3-Clause
// Dot products of contiguous rows, summed in fp32.
#pragma once

#include <cstdint>

#include "backends/compute_kokkos/tile_product.hpp"

namespace mylos::compute_kokkos {

KOKKOS_FORCEINLINE_FUNCTION Vec dot_add(Vec a, Vec b, Vec c) {
  return multiply_add(a, b, c);
}

#if defined(MYLOS_AVX512_LANES) && defined(__AVX512BF16__)
/// c + the products of pairs of successive values, in fp32.
inline Vec dot_add(Bf16Pairs a, Bf16Pairs b, Vec c) {
  return std::bit_cast<Vec>(_mm512_dpbf16_ps(std::bit_cast<__m512>(c), a, b));
}
#endif

/// How many values `load_values` loads.
template <class T>
inline constexpr int num_loaded = width* group_size<TileElement<T>>;

/// A register of values for dot_add: as they are if it multiplies them, otherwise widened to fp32.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION auto load_values(const T* from) {
  if constexpr (std::is_same_v<TileElement<T>, float>) {
    return load(from);
  } else {
    return load(reinterpret_cast<const TileElement<T>*>(from));
  }
}

/// The same for the `count` < num_loaded last values of a row; the others are 0.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION auto load_last_values(const T* from, std::int64_t count) {
  T values[num_loaded<T>] = {};
  for (std::int64_t i = 0; i < count; ++i) values[i] = from[i];
  return load_values(values);
}

/// The sum of the lanes, halves first: sum_of adds one after the other.
KOKKOS_FORCEINLINE_FUNCTION float sum_of_halves(Vec value) {
#if defined(MYLOS_AVX512_LANES)
  return _mm512_reduce_add_ps(std::bit_cast<__m512>(value));
#elif defined(MYLOS_AVX2_LANES)
  const auto eight = std::bit_cast<__m256>(value);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  return sum_of(value);
#endif
}

/// lanes[i][j] += the products of the values that load_at loads of rows i of x and j of w.
template <int N, int M, class T, class Load>
KOKKOS_FORCEINLINE_FUNCTION void add_products(const T* const (&x)[N], const T* w, std::int64_t w_row,
                                              const Load& load_at, Vec (&lanes)[N][M]) {
  decltype(load_at(w)) right[M];
  for (int j = 0; j < M; ++j) right[j] = load_at(w + j * w_row);
  for (int i = 0; i < N; ++i) {
    const auto left = load_at(x[i]);
    for (int j = 0; j < M; ++j) lanes[i][j] = dot_add(left, right[j], lanes[i][j]);
  }
}

/// Dot products of the N rows of x with M rows of w, `n` long and `w_row` apart: sum[i][j] of rows i and j. A
/// lane adds every `width`-th product (or pair of products), in order, then the lanes are added: a result
/// does not depend on N, M or the other rows. `ahead` is how far from the products cache lines are requested,
/// in bytes, as if the rows of w were the next part of one array; 0 for not at all.
template <int N, int M, class T>
KOKKOS_FORCEINLINE_FUNCTION void dot_products(std::int64_t n, const T* const (&x)[N], const T* w,
                                              std::int64_t w_row, std::int64_t ahead, float (&sum)[N][M]) {
  constexpr int step = num_loaded<T>;
  Vec lanes[N][M];
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < M; ++j) lanes[i][j] = Vec(0.0F);
  }
  std::int64_t k = 0;
  for (; k + step <= n; k += step) {
    if (ahead > 0) {
      for (int j = 0; j < M; ++j) prefetch(reinterpret_cast<const char*>(w + k * M + j * step) + ahead);
    }
    add_products<N, M>(
        x, w, w_row, [k](const T* row) { return load_values(row + k); }, lanes);
  }
  if (k < n)
    add_products<N, M>(
        x, w, w_row, [k, n](const T* row) { return load_last_values(row + k, n - k); }, lanes);
  for (int i = 0; i < N; ++i) {
    for (int j = 0; j < M; ++j) sum[i][j] = sum_of_halves(lanes[i][j]);
  }
}

/// The dot product of two rows, as dot_products computes it. Written out, because GCC 12 fails at -O1 for
/// dot_products<1, 1> of bf16 where it multiplies pairs.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION float dot_product(std::int64_t n, const T* a, const T* b) {
  constexpr int step = num_loaded<T>;
  Vec lanes(0.0F);
  std::int64_t k = 0;
  for (; k + step <= n; k += step) lanes = dot_add(load_values(a + k), load_values(b + k), lanes);
  if (k < n) lanes = dot_add(load_last_values(a + k, n - k), load_last_values(b + k, n - k), lanes);
  return sum_of_halves(lanes);
}

}  // namespace mylos::compute_kokkos
