// SPDX-License-Identifier: BSD-3-Clause
// Vectors of fp32 over storage of any floating type: loads, stores, exp, and loops over rows and columns.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "backends/compute_kokkos/kokkos_simd.hpp"
#include "backends/compute_kokkos/views.hpp"

#if defined(__GNUC__) && !defined(__CUDACC__)
#if defined(__AVX512F__) && defined(KOKKOS_ARCH_AVX512XEON)
#define MYLOS_AVX512_LANES
#include <immintrin.h>
#elif defined(__F16C__) && defined(KOKKOS_ARCH_AVX2)
#define MYLOS_AVX2_LANES
#include <immintrin.h>
#endif
#endif

namespace mylos::compute_kokkos {

/// As many floats as a register holds; one on a GPU, where threads are the lanes.
using Vec = Kokkos::Experimental::simd<float>;
inline constexpr int width = static_cast<int>(Vec::size());

#if defined(__GNUC__) && !defined(__CUDACC__)

// Written as loops over lanes, these conversions would compile to vectors of half the width, and joining two
// of those would stall.
using Words [[gnu::vector_size(width * sizeof(std::uint32_t))]] = std::uint32_t;
using Halves [[gnu::vector_size(width * sizeof(std::uint16_t))]] = std::uint16_t;

inline Vec load_narrow(const bf16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  return std::bit_cast<Vec>(__builtin_convertvector(halves, Words) << 16U);
}

#if defined(MYLOS_AVX512_LANES) && defined(__AVX512BF16__)
/// Rounded to nearest, ties to even; subnormal numbers become 0.
inline Halves round_bf16(Vec value) {
  return std::bit_cast<Halves>(_mm512_cvtneps_pbh(std::bit_cast<__m512>(value)));
}
#else
inline Halves round_bf16(Vec value) {
  const auto words = std::bit_cast<Words>(value);
  const Words rounded = words + 0x7fffU + ((words >> 16U) & 1U);
  const Words chosen = (words & 0x7fffffffU) > 0x7f800000U ? words | 0x00400000U : rounded;
  return __builtin_convertvector(chosen >> 16U, Halves);
}
#endif

inline void store_narrow(bf16* to, Vec value) {
  const Halves halves = round_bf16(value);
  std::memcpy(static_cast<void*>(to), &halves, sizeof(halves));
}

#ifdef MYLOS_AVX512_LANES
inline Vec load_narrow(const fp16* from) {
  return std::bit_cast<Vec>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
inline void store_narrow(fp16* to, Vec value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(std::bit_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(MYLOS_AVX2_LANES)
inline Vec load_narrow(const fp16* from) {
  return std::bit_cast<Vec>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline void store_narrow(fp16* to, Vec value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(std::bit_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
}
#endif

#endif

/// Lane by lane, for types without a vector form above.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION Vec load_narrow(const T* from) {
  float lanes[width];
  for (int l = 0; l < width; ++l) lanes[l] = static_cast<float>(from[l]);
  return Vec(lanes, Kokkos::Experimental::simd_flag_default);
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void store_narrow(T* to, Vec value) {
  float lanes[width];
  Kokkos::Experimental::simd_unchecked_store(value, lanes, Kokkos::Experimental::simd_flag_default);
  for (int l = 0; l < width; ++l) to[l] = static_cast<T>(lanes[l]);
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION Vec load(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return Vec(from, Kokkos::Experimental::simd_flag_default);
  } else {
    return load_narrow(from);
  }
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION void store(T* to, Vec value) {
  if constexpr (std::is_same_v<T, float>) {
    Kokkos::Experimental::simd_unchecked_store(value, to, Kokkos::Experimental::simd_flag_default);
  } else {
    store_narrow(to, value);
  }
}

/// A range of an array: `count` elements, at most `width`, starting at `first`.
struct Lanes {
  std::int64_t first;
  int count;

  /// Lanes beyond `count` are 0.
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION Vec load(const T* array) const {
    if (count == width) return compute_kokkos::load(array + first);
    float lanes[width] = {};
    for (int l = 0; l < count; ++l) lanes[l] = static_cast<float>(array[first + l]);
    return compute_kokkos::load(lanes);
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION void store(T* array, Vec value) const {
    if (count == width) return compute_kokkos::store(array + first, value);
    float lanes[width];
    compute_kokkos::store(lanes, value);
    for (int l = 0; l < count; ++l) array[first + l] = static_cast<T>(lanes[l]);
  }
  /// `value` with the lanes beyond `count` replaced.
  KOKKOS_FORCEINLINE_FUNCTION Vec only(Vec value, float replacement) const {
    if (count == width) return value;
    float lanes[width];
    compute_kokkos::store(lanes, value);
    for (int l = count; l < width; ++l) lanes[l] = replacement;
    return compute_kokkos::load(lanes);
  }
};

KOKKOS_FORCEINLINE_FUNCTION Vec multiply_add(Vec a, Vec b, Vec c) {
  return Kokkos::fma(a, b, c);
}

KOKKOS_FORCEINLINE_FUNCTION float sum_of(Vec value) {
  return Kokkos::Experimental::reduce(value);
}
KOKKOS_FORCEINLINE_FUNCTION float max_of(Vec value) {
  return Kokkos::Experimental::reduce_max(value);
}

/// The Taylor polynomial of e^r on [-ln 2 / 2, ln 2 / 2].
KOKKOS_FORCEINLINE_FUNCTION Vec exponential_of_remainder(Vec r) {
  Vec p(1.0F / 5040.0F);
  p = multiply_add(p, r, Vec(1.0F / 720.0F));
  p = multiply_add(p, r, Vec(1.0F / 120.0F));
  p = multiply_add(p, r, Vec(1.0F / 24.0F));
  p = multiply_add(p, r, Vec(1.0F / 6.0F));
  p = multiply_add(p, r, Vec(0.5F));
  p = multiply_add(p, r, Vec(1.0F));
  return multiply_add(p, r, Vec(1.0F));
}

/// x - n ln 2, Cody and Waite's reduction.
KOKKOS_FORCEINLINE_FUNCTION Vec remainder_of(Vec x, Vec n) {
  return multiply_add(n, Vec(2.12194440e-4F), multiply_add(n, Vec(-0.693359375F), x));
}

/// e^x for x <= 88, and e^88 for larger x. Below -87 the result is 0 or, with AVX-512, the fp32 value, which
/// may be subnormal. NaN stays NaN. The relative error of normal results is below 2e-7.
#ifdef MYLOS_AVX512_LANES
inline Vec exponential(Vec x) {
  // The minimum and maximum instructions return their second argument if either argument is NaN.
  const __m512 clamped =
      _mm512_min_ps(_mm512_set1_ps(88.0F), _mm512_max_ps(_mm512_set1_ps(-104.0F), std::bit_cast<__m512>(x)));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(clamped, _mm512_set1_ps(1.44269504F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec p = exponential_of_remainder(remainder_of(std::bit_cast<Vec>(clamped), std::bit_cast<Vec>(n)));
  return std::bit_cast<Vec>(_mm512_scalef_ps(std::bit_cast<__m512>(p), n));
}
#else
KOKKOS_FORCEINLINE_FUNCTION Vec exponential(Vec x) {
  using Kokkos::Experimental::condition;
  using Int = Kokkos::Experimental::simd<std::int32_t>;
  const Vec clamped = condition(x > Vec(88.0F), Vec(88.0F), condition(x < Vec(-87.0F), Vec(-87.0F), x));
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  const Vec magic(12582912.0F);
  const Vec shifted = multiply_add(clamped, Vec(1.44269504F), magic);
  const Vec p = exponential_of_remainder(remainder_of(clamped, shifted - magic));
  const Int exponent = (std::bit_cast<Int>(shifted) << 23) + Int(0x3f800000);
  return condition(x < Vec(-87.0F), Vec(0.0F), p * std::bit_cast<Vec>(exponent));
}
#endif

/// Requests a cache line for the second-level cache; `address` need not be valid.
KOKKOS_FORCEINLINE_FUNCTION void prefetch(const void* address) {
#if defined(__GNUC__) && !defined(__CUDACC__)
  __builtin_prefetch(address, 0, 2);
#else
  static_cast<void>(address);
#endif
}

/// Whether the calling thread is done with so many elements before the others have started.
inline bool is_tiny(std::int64_t elements) {
  return on_host && elements <= 8192;
}

/// Calls f(Lanes) for all ranges of [0, n), in parallel.
template <class Function>
void for_lanes(const std::string& label, std::int64_t n, Function f) {
  if constexpr (on_host) {
    if (is_tiny(n)) {
      for (std::int64_t first = 0; first < n; first += width)
        f(Lanes{first, first + width <= n ? width : static_cast<int>(n - first)});
      return;
    }
  }
  Kokkos::parallel_for(
      label, Range(queue(), 0, (n + width - 1) / width), KOKKOS_LAMBDA(std::int64_t i) {
        const std::int64_t first = i * width;
        if (first + width <= n) {
          f(Lanes{first, width});
        } else {
          f(Lanes{first, static_cast<int>(n - first)});
        }
      });
}

/// A team that is the calling thread.
struct Alone {
  KOKKOS_FUNCTION int team_rank() const { return 0; }
  KOKKOS_FUNCTION int team_size() const { return 1; }
  template <class Reducer>
  KOKKOS_FUNCTION void team_reduce(const Reducer& /*value*/) const {}
};

/// Calls f(team, row) for all rows, each with a team of its own: a Member, or Alone if the elements are few.
template <class Function>
void for_rows(const std::string& label, std::int64_t rows, std::int64_t columns, Function f) {
  if (is_tiny(rows * columns)) {
    for (std::int64_t row = 0; row < rows; ++row) f(Alone(), row);
    return;
  }
  Kokkos::parallel_for(
      label, TeamPolicy(queue(), rows, row_team_size),
      KOKKOS_LAMBDA(const Member& member) { f(member, static_cast<std::int64_t>(member.league_rank())); });
}

/// Calls f(Lanes) for all ranges of [0, n), divided among the team's threads.
template <class Team, class Function>
KOKKOS_FORCEINLINE_FUNCTION void for_row(const Team& member, std::int64_t n, const Function& f) {
  const std::int64_t stride = static_cast<std::int64_t>(member.team_size()) * width;
  std::int64_t i = static_cast<std::int64_t>(member.team_rank()) * width;
  for (; i + width <= n; i += stride) f(Lanes{i, width});
  if (i < n) f(Lanes{i, static_cast<int>(n - i)});
}

template <int N>
using Vecs = Kokkos::Array<Vec, N>;

/// Sums the N values of term(Lanes) over [0, n), and returns the sums to all threads of the team.
template <int N, class Team, class Term>
KOKKOS_FORCEINLINE_FUNCTION Kokkos::Array<float, N> row_sums(const Team& member, std::int64_t n,
                                                             const Term& term) {
  // Several chains of additions hide the latency of one.
  constexpr int chains = 4;
  Vec sums[chains][N];
  for (auto& chain : sums) {
    for (Vec& sum : chain) sum = Vec(0.0F);
  }
  const std::int64_t stride = static_cast<std::int64_t>(member.team_size()) * width;
  std::int64_t i = static_cast<std::int64_t>(member.team_rank()) * width;
  for (; i + (chains - 1) * stride + width <= n; i += chains * stride) {
    for (int c = 0; c < chains; ++c) {
      const Vecs<N> values = term(Lanes{i + c * stride, width});
      for (int s = 0; s < N; ++s) sums[c][s] = sums[c][s] + values[s];
    }
  }
  for (; i < n; i += stride) {
    const Lanes at{i, static_cast<int>(n - i < width ? n - i : width)};
    const Vecs<N> values = term(at);
    for (int s = 0; s < N; ++s) sums[0][s] = sums[0][s] + at.only(values[s], 0.0F);
  }
  Kokkos::Array<float, N> totals;
  for (int s = 0; s < N; ++s) {
    float total = sum_of((sums[0][s] + sums[1][s]) + (sums[2][s] + sums[3][s]));
    member.team_reduce(Kokkos::Sum<float>(total));
    totals[s] = total;
  }
  return totals;
}

/// Returns the largest of x[0, n) to all threads of the team.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION float row_max(const Member& member, std::int64_t n, const T* x) {
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  Vec largest[2] = {Vec(lowest), Vec(lowest)};
  int chain = 0;
  for_row(member, n, [&](Lanes at) {
    largest[chain] = Kokkos::max(largest[chain], at.only(at.load(x), lowest));
    chain ^= 1;
  });
  float total = max_of(Kokkos::max(largest[0], largest[1]));
  member.team_reduce(Kokkos::Max<float>(total));
  return total;
}

/// out[s][c] = (accumulate ? out[s][c] : 0) + sum over rows of value s of term(row, Lanes) at column c. Rows
/// are added in blocks, in order, and a thread owns its columns, so the result does not depend on the number
/// of threads.
template <int N, class T, class Term>
void column_sums(const std::string& label, std::int64_t rows, std::int64_t columns, Term term,
                 Kokkos::Array<T*, N> out, bool accumulate) {
  // On the host a thread sums about its share of the columns at a time, up to a limit, so that it reads long
  // runs of each row.
  constexpr int most_vectors = on_host ? 32 : 1;
  const std::int64_t share = columns / (width * static_cast<std::int64_t>(queue().concurrency()));
  const int vectors = share < 4 ? (most_vectors < 4 ? most_vectors : 4)
                                : static_cast<int>(share < most_vectors ? share : most_vectors);
  const std::int64_t strip = static_cast<std::int64_t>(vectors) * width;
  constexpr std::int64_t block = 64;
  Kokkos::parallel_for(
      label, Range(queue(), 0, (columns + strip - 1) / strip), KOKKOS_LAMBDA(std::int64_t i) {
        Vec totals[most_vectors][N];
        Lanes lanes[most_vectors];
        for (int v = 0; v < vectors; ++v) {
          const std::int64_t first = i * strip + v * width;
          const std::int64_t left = columns - first;
          lanes[v] = {first, static_cast<int>(left < 0 ? 0 : (left < width ? left : width))};
          for (int s = 0; s < N; ++s) {
            totals[v][s] = accumulate ? lanes[v].load(out[s]) : Vec(0.0F);
          }
        }
        for (std::int64_t row = 0; row < rows; row += block) {
          Vec partial[most_vectors][N];
          for (int v = 0; v < vectors; ++v) {
            for (int s = 0; s < N; ++s) partial[v][s] = Vec(0.0F);
          }
          const std::int64_t end = row + block < rows ? row + block : rows;
          for (std::int64_t r = row; r < end; ++r) {
            for (int v = 0; v < vectors; ++v) {
              const Vecs<N> values = term(r, lanes[v]);
              for (int s = 0; s < N; ++s) partial[v][s] = partial[v][s] + values[s];
            }
          }
          for (int v = 0; v < vectors; ++v) {
            for (int s = 0; s < N; ++s) totals[v][s] = totals[v][s] + partial[v][s];
          }
        }
        for (int v = 0; v < vectors; ++v) {
          for (int s = 0; s < N; ++s) lanes[v].store(out[s], totals[v][s]);
        }
      });
}

}  // namespace mylos::compute_kokkos
