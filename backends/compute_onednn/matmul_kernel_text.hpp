// SPDX-License-Identifier: BSD-3-Clause
// The source code of the MatmulKernels. Each source file that includes it is compiled for one instruction
// set: AVX2 with FMA and F16C, AVX-512, or AVX-512 with BF16.
#pragma once

#include "backends/compute_onednn/matmul_kernel.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <atomic>
#include <bit>
#include <cstring>
#include <immintrin.h>
#include <type_traits>
#include <utility>

namespace mylos::compute_onednn {

// NOLINTBEGIN(misc-definitions-in-headers): each source file has its own definitions, compiled for its
// instruction set
namespace {

// The sums of one strip of a tile stay in registers: 8 × 48 sums in 24 of AVX-512's 32, or 6 × 16 in 12 of
// AVX2's 16. A step needs 11 loads for 24 multiply-adds with AVX-512, and 8 for 12 with AVX2.
#if defined(__AVX512F__)
constexpr int width = 16;
constexpr int tile_rows = 8;
constexpr int vectors = 3;
#else
constexpr int width = 8;
constexpr int tile_rows = 6;
constexpr int vectors = 2;
#endif
constexpr int strip_columns = vectors * width;
constexpr int tile_columns = 48;
constexpr int strips = tile_columns / strip_columns;
constexpr int tile_size = tile_rows * tile_columns;
/// The rows of `a` that are packed at a time fill whole vectors, and at least a cache line of 16-bit values.
constexpr int chunk_tiles = tile_rows == 8 ? 4 : 8;
constexpr int chunk_rows = chunk_tiles * tile_rows;
static_assert(chunk_rows % width == 0);
constexpr std::size_t alignment = 64;

template <int N>
struct Lanes {
  using Floats [[gnu::vector_size(N * sizeof(float))]] = float;
  using Words [[gnu::vector_size(N * sizeof(float))]] = std::uint32_t;
  using Halves [[gnu::vector_size(N * sizeof(std::uint16_t))]] = std::uint16_t;
};
using Vector = Lanes<width>::Floats;
using Words = Lanes<width>::Words;

#if defined(__AVX512BF16__)
template <class T>
constexpr bool has_pairs = std::is_same_v<T, bf16>;
#else
template <class T>
constexpr bool has_pairs = false;
#endif

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return MatmulDivision::ceil_div(a, b);
}

template <class To>
To read(const void* from) {
  To value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

/// N values of type T as floats.
template <int N, class T>
typename Lanes<N>::Floats widen(const T* from) {
  using Floats = typename Lanes<N>::Floats;
  if constexpr (std::is_same_v<T, float>) {
    return read<Floats>(from);
  } else if constexpr (std::is_same_v<T, bf16>) {
    const auto halves = read<typename Lanes<N>::Halves>(from);
    return std::bit_cast<Floats>(__builtin_convertvector(halves, typename Lanes<N>::Words) << 16U);
#if defined(__AVX512F__)
  } else if constexpr (N == 16) {
    return _mm512_cvtph_ps(read<__m256i>(from));
#endif
  } else {
    static_assert(N == 8);
    return _mm256_cvtph_ps(read<__m128i>(from));
  }
}

/// Rounded to nearest, ties to even.
template <int N, class T>
void narrow(T* to, typename Lanes<N>::Floats values) {
  const auto write = [to](const auto& rounded, std::size_t bytes) {
    std::memcpy(static_cast<void*>(to), &rounded, bytes);
  };
  if constexpr (std::is_same_v<T, float>) {
    write(values, sizeof(values));
  } else if constexpr (std::is_same_v<T, bf16>) {
#if defined(__AVX512BF16__)
    if constexpr (N == 16) {
      return write(_mm512_cvtneps_pbh(values), N * sizeof(T));
    } else if constexpr (N == 8) {
      return write(_mm256_cvtneps_pbh(values), N * sizeof(T));
    }
#endif
    const auto words = std::bit_cast<typename Lanes<N>::Words>(values);
    const auto rounded = words + 0x7fffU + ((words >> 16U) & 1U);
    const auto chosen = (words & 0x7fffffffU) > 0x7f800000U ? words | 0x00400000U : rounded;
    write(__builtin_convertvector(chosen >> 16U, typename Lanes<N>::Halves), N * sizeof(T));
#if defined(__AVX512F__)
  } else if constexpr (N == 16) {
    write(_mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT), N * sizeof(T));
#endif
  } else {
    static_assert(N == 8);
    write(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT), N * sizeof(T));
  }
}

/// The first `count` of N values, at most `whole`; the other values are 0. Fast if `count` is at least
/// `whole`.
template <int N, int whole = N, class T>
typename Lanes<N>::Floats widen_first(const T* from, std::int64_t count) {
  if (whole == N && count >= N) return widen<N>(from);
  T values[N] = {};
  const auto size = static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, whole)) * sizeof(T);
  count >= whole ? std::memcpy(static_cast<void*>(values), from, whole * sizeof(T))
                 : std::memcpy(static_cast<void*>(values), from, size);
  return widen<N>(values);
}

/// Writes or adds the first `count` of N values, at most `whole`.
template <int N, bool accumulate, int whole = N, class T>
void store_first(T* to, std::int64_t count, typename Lanes<N>::Floats values) {
  if (accumulate) values += widen_first<N, whole>(to, count);
  if (whole == N && count >= N) return narrow<N>(to, values);
  T rounded[N];
  narrow<N>(rounded, values);
  count >= whole ? std::memcpy(static_cast<void*>(to), rounded, whole * sizeof(T))
                 : std::memcpy(static_cast<void*>(to), rounded, static_cast<std::size_t>(count) * sizeof(T));
}

Vector broadcast(const std::byte* from) {
  Vector values;
  // The asm keeps the instructions in this order; in another order, the registers do not suffice.
  asm volatile("vbroadcastss %1, %0" : "=v"(values) : "m"(*reinterpret_cast<const float*>(from)));
  return values;
}

/// sum + a b, of pairs or of floats.
template <bool pairs>
Vector multiply_add(Vector a, Vector b, Vector sum) {
#if defined(__AVX512BF16__)
  if constexpr (pairs) return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
#endif
  // Without the asm, GCC would choose forms that overwrite a factor, or another order, and would spill sums.
  asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

/// Interleaves the first halves of x and y, or the second halves.
template <bool second, std::size_t... lane>
Vector zip(Vector x, Vector y, std::index_sequence<lane...>) {
  return __builtin_shufflevector(x, y,
                                 (static_cast<int>(lane / 2 + lane % 2 * width + second * width / 2))...);
}

/// Transposes x: x[i][j] becomes x[j][i].
void transpose(Vector (&x)[width]) {
  constexpr std::make_index_sequence<width> lanes;
  Vector y[width];
#pragma GCC unroll 4
  for (int stage = 1; stage < width; stage *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < width / 2; ++i) {
      y[2 * i] = zip<false>(x[i], x[i + width / 2], lanes);
      y[2 * i + 1] = zip<true>(x[i], x[i + width / 2], lanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i) x[i] = y[i];
  }
}

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

template <class T>
const T* at(const MatrixView& matrix, std::int64_t i, std::int64_t j) {
  return static_cast<const T*>(matrix.data) + i * matrix.row + j * matrix.column;
}

/// Memory that is about to be used: `count` pieces of `bytes` bytes, `stride` bytes apart.
struct Pieces {
  const std::byte* data = nullptr;
  std::int64_t stride = 0, count = 0, bytes = 0;

  /// Part `index` of `parts`.
  Pieces part(std::int64_t index, std::int64_t parts) const {
    const std::int64_t begin = count * index / parts;
    return {data + begin * stride, stride, count * (index + 1) / parts - begin, bytes};
  }
  template <bool write>
  void prefetch() const {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::byte* piece = data + i * stride;
      for (std::int64_t byte = 0; byte < bytes; byte += alignment) __builtin_prefetch(piece + byte, write, 3);
      __builtin_prefetch(piece + bytes - 1, write, 3);
    }
  }
};

/// The memory of `matrix` [rows, columns].
Pieces pieces_of(const MatrixView& matrix, Range rows, Range columns) {
  const auto size = static_cast<std::int64_t>(size_of(matrix.dtype));
  const std::byte* data = static_cast<const std::byte*>(matrix.data) +
                          (rows.begin * matrix.row + columns.begin * matrix.column) * size;
  return matrix.column == 1 ? Pieces{data, matrix.row * size, rows.size(), columns.size() * size}
                            : Pieces{data, matrix.column * size, columns.size(), rows.size() * size};
}

/// The rows of a tile: the value or pair of row r at step p of the summed dimension starts at
/// data + r * row + p * step, in bytes.
struct Left {
  const std::byte* data;
  std::int64_t row, step;
};

/// The memory to prefetch while a tile is multiplied. Later tiles read `next`. After this tile, `result` is
/// written and `source` is read.
struct Requests {
  Pieces next, result, source;

  Requests part(std::int64_t index, std::int64_t parts) const {
    return {next.part(index, parts), result.part(index, parts), source.part(index, parts)};
  }
};

/// sums (rows, columns of a strip) = or += the product of a tile's rows and a strip of a panel, over `steps`
/// steps. Prefetches a few lines at a time, because the product's loads wait for earlier prefetches.
template <bool pairs, bool add>
[[gnu::noinline]] void multiply_strip(std::int64_t steps, const Left& left, const float* b,
                                      const Requests& requests, float* sums) {
  Vector sum[tile_rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < tile_rows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = add ? read<Vector>(sums + r * tile_columns + v * width) : Vector{};
  }
  const std::byte* upper = left.data;
  const std::byte* lower = upper + 4 * left.row;
  const std::int64_t row = left.row;
  const std::int64_t step = left.step;
  const auto multiply_step = [&] {
    Vector right[vectors];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      auto values = read<Vector>(b + v * width);
      asm("" : "+v"(values));  // loaded once, not as an operand of each instruction
      right[v] = values;
    }
#pragma GCC unroll 8
    for (int r = 0; r < tile_rows; ++r) {
      const Vector values = broadcast((r < 4 ? upper : lower) + r % 4 * row);
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sum[r][v] = multiply_add<pairs>(values, right[v], sum[r][v]);
    }
    upper += step;
    if (tile_rows > 4) lower += step;
    b += strip_columns;
  };
  // Runs an even number of steps for each line of `next` that is prefetched.
  constexpr std::int64_t segments = 8;
  const std::int64_t lines = ceil_div(requests.next.bytes, static_cast<std::int64_t>(alignment));
  const std::int64_t all_lines = lines * requests.next.count;
  const std::int64_t share = all_lines == 0 ? 0 : steps / 2 / all_lines;
  const std::byte* piece = requests.next.data;
  std::int64_t line = 0;
  std::int64_t done = 0;
  std::int64_t lines_done = 0;
  for (std::int64_t segment = 0; segment < segments; ++segment) {
    requests.result.part(segment, segments).template prefetch<true>();
    requests.source.part(segment, segments).template prefetch<false>();
    for (const std::int64_t end = all_lines * (segment + 1) / segments; lines_done < end; ++lines_done) {
      _mm_prefetch(reinterpret_cast<const char*>(piece) + line * 64, _MM_HINT_T1);
      if (++line == lines) {
        line = 0;
        piece += requests.next.stride;
      }
      for (std::int64_t s = 0; s < share; ++s) {
        multiply_step();
        multiply_step();
      }
    }
    done = std::max(done, 2 * share * lines_done);
    if (all_lines != 0 && segment + 1 < segments) continue;
    for (const std::int64_t end = steps * (segment + 1) / segments; done < end; ++done) multiply_step();
  }
#pragma GCC unroll 8
  for (int r = 0; r < tile_rows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v)
      std::memcpy(sums + r * tile_columns + v * width, &sum[r][v], sizeof(Vector));
  }
}

/// sums (tile_rows, tile_columns) = or += the product of a tile's rows and a panel.
template <bool pairs>
void multiply_tile(std::int64_t steps, const Left& left, const float* panel, std::int64_t strip_size,
                   const Requests& requests, bool add, float* sums) {
  for (int s = 0; s < strips; ++s) {
    const auto multiply = add ? multiply_strip<pairs, true> : multiply_strip<pairs, false>;
    multiply(steps, left, panel + s * strip_size, requests.part(s, strips), sums + s * strip_columns);
  }
}

/// `width` values at each of two places along k, as pairs.
template <class T>
Vector pair_up(const T* first, const T* second) {
  using Halves = Lanes<width>::Halves;
  return std::bit_cast<Vector>(__builtin_convertvector(read<Halves>(first), Words) |
                               __builtin_convertvector(read<Halves>(second), Words) << 16U);
}

/// Packs a panel of `b` [rows, columns] into strips that lie one after another, with zeros beyond the end of
/// `b`. The steps of the packing run between the tiles that are multiplied by the panel before this one; the
/// first panel is packed at once.
template <class T>
class PanelPacking {
 public:
  PanelPacking(const MatrixView& b, Range rows, Range columns, std::int64_t strip_size, float* panel)
      : b_(b),
        rows_(rows),
        columns_(columns),
        strip_size_(strip_size),
        panel_(panel),
        steps_(columns.size() == 0 ? 0
               : b.column == 1     ? ceil_div(rows.size(), step_rows)
                                   : ceil_div(rows.size(), square_rows) * squares) {}

  /// Packs until `share` / `shares` of all steps are done.
  void advance(std::int64_t share, std::int64_t shares) {
    for (const std::int64_t end = ceil_div(steps_ * share, shares); done_ < end; ++done_) pack(done_);
  }
  /// The memory that the next step will read.
  Pieces source() const {
    if (done_ >= steps_) return {};
    return b_.column == 1 ? pieces_of(b_, rows_of(done_), columns_)
                          : pieces_of(b_, square_of(done_).rows, square_of(done_).columns);
  }

 private:
  static constexpr std::int64_t group = has_pairs<T> ? 2 : 1;
  static constexpr std::int64_t step_rows = 8;
  static constexpr std::int64_t square_rows = group * width;
  static constexpr std::int64_t squares = tile_columns / width;

  /// A step packs these rows if the values of a row are contiguous, and a square if the values of a column
  /// are.
  Range rows_of(std::int64_t step) const {
    const std::int64_t begin = rows_.begin + step * step_rows;
    return {begin, std::min(begin + step_rows, rows_.end)};
  }
  struct Square {
    Range rows, columns;
  };
  Square square_of(std::int64_t step) const {
    const std::int64_t row = rows_.begin + step / squares * square_rows;
    const std::int64_t column = std::min(columns_.begin + step % squares * width, columns_.end);
    return {{row, std::min(row + square_rows, rows_.end)}, {column, std::min(column + width, columns_.end)}};
  }
  /// Where the panel holds vector v of the columns at step p of the summed dimension.
  float* place(std::int64_t p, std::int64_t v) const {
    return panel_ + v / vectors * strip_size_ + p * strip_columns + v % vectors * width;
  }

  void pack(std::int64_t step) const {
    b_.column == 1 ? pack_rows(rows_of(step), step * step_rows / group) : pack_square(step);
  }

  void pack_rows(Range rows, std::int64_t p) const {
    const std::int64_t count = columns_.size();
    T copies[2][tile_columns];
    for (std::int64_t k = rows.begin; k < rows.end; k += group, ++p) {
      const T* from[2];
      for (std::int64_t i = 0; i < group; ++i) {
        from[i] = k + i < rows.end ? at<T>(b_, k + i, columns_.begin) : copies[i];
        if (count == tile_columns && k + i < rows.end) continue;
        std::memset(static_cast<void*>(copies[i]), 0, sizeof(copies[i]));
        if (k + i < rows.end)
          std::memcpy(static_cast<void*>(copies[i]), from[i], static_cast<std::size_t>(count) * sizeof(T));
        from[i] = copies[i];
      }
#pragma GCC unroll 6
      for (std::int64_t v = 0; v < squares; ++v) {
        Vector line;
        if constexpr (has_pairs<T>) {
          line = pair_up(from[0] + v * width, from[1] + v * width);
        } else {
          line = widen<width>(from[0] + v * width);
        }
        std::memcpy(place(p, v), &line, sizeof(line));
      }
    }
  }

  void pack_square(std::int64_t step) const {
    const Square square = square_of(step);
    Vector x[width];
    for (int i = 0; i < width; ++i) {
      if (i >= square.columns.size()) {
        x[i] = Vector{};
        continue;
      }
      const T* from = at<T>(b_, square.rows.begin, square.columns.begin + i);
      if constexpr (has_pairs<T>) {
        x[i] = widen_first<width>(reinterpret_cast<const float*>(from), square.rows.size() / 2);
        if (square.rows.size() % 2 != 0) x[i] = with_last(x[i], from, square.rows.size());
      } else {
        x[i] = widen_first<width>(from, square.rows.size());
      }
    }
    transpose(x);
    for (int i = 0; i < width; ++i)
      std::memcpy(place(step / squares * width + i, step % squares), &x[i], sizeof(x[i]));
  }

  /// The pairs of an odd number of values, the last one padded with 0.
  static Vector with_last(Vector pairs, const T* from, std::int64_t count) {
    T values[square_rows] = {};
    std::memcpy(static_cast<void*>(values), from, static_cast<std::size_t>(count) * sizeof(T));
    std::memcpy(&pairs, values, sizeof(pairs));
    return pairs;
  }

  MatrixView b_;
  Range rows_, columns_;
  std::int64_t strip_size_;
  float* panel_;
  std::int64_t steps_;
  std::int64_t done_ = 0;
};

/// Packs tiles of rows of `a` [rows, ks], `stride` floats apart, with zeros beyond the end of `a`. If the
/// values of a row are contiguous, a tile has rows of `row` floats; otherwise it has steps of one value or
/// pair per row.
template <class T>
void pack_tiles(const MatrixView& a, Range rows, Range ks, std::int64_t row, std::int64_t stride, float* to) {
  constexpr int group = has_pairs<T> ? 2 : 1;
  const std::int64_t tiles = ceil_div(rows.size(), tile_rows);
  if (a.column == 1) {
    const std::int64_t steps = ceil_div(ks.size(), group);
    for (std::int64_t r = 0; r < tiles * tile_rows; ++r) {
      float* out = to + r / tile_rows * stride + r % tile_rows * row;
      if (rows.begin + r >= rows.end) {
        std::memset(out, 0, static_cast<std::size_t>(steps) * sizeof(float));
        continue;
      }
      const T* in = at<T>(a, rows.begin + r, ks.begin);
      if constexpr (has_pairs<T>) {
        out[steps - 1] = 0.0F;
        std::memcpy(static_cast<void*>(out), in, static_cast<std::size_t>(ks.size()) * sizeof(T));
      } else {
        std::int64_t p = 0;
        for (; p + width <= steps; p += width) narrow<width>(out + p, widen<width>(in + p));
        if (p < steps) store_first<width, false>(out + p, steps - p, widen_first<width>(in + p, steps - p));
      }
    }
    return;
  }
  const bool is_whole = rows.size() == chunk_rows;
  T copies[2][chunk_rows] = {};
  alignas(alignment) float line[chunk_rows];
  for (std::int64_t k = ks.begin; k < ks.end; k += group) {
    const T* from[2] = {copies[0], copies[1]};
    for (int i = 0; i < group; ++i) {
      const std::size_t bytes = static_cast<std::size_t>(rows.size()) * sizeof(T);
      if (k + i >= ks.end) {
        std::memset(static_cast<void*>(copies[i]), 0, bytes);
      } else if (is_whole) {
        from[i] = at<T>(a, rows.begin, k + i);
      } else {
        std::memcpy(static_cast<void*>(copies[i]), at<T>(a, rows.begin, k + i), bytes);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < chunk_rows; j += width) {
      Vector values;
      if constexpr (has_pairs<T>) {
        values = pair_up(from[0] + j, from[1] + j);
      } else {
        values = widen<width>(from[0] + j);
      }
      std::memcpy(line + j, &values, sizeof(values));
    }
    float* out = to + (k - ks.begin) / group * tile_rows;
    for (std::int64_t tile = 0; tile < tiles; ++tile, out += stride)
      std::memcpy(out, line + tile * tile_rows, tile_rows * sizeof(float));
  }
}

/// Stores tiles of sums in a matrix.
class Result {
 public:
  Result(const MatrixView& c, bool accumulate) : c_(c), accumulate_(accumulate) {}

  /// Stores sums (tile_rows, tile_columns) + bias (tile_columns) in `rows` and `columns` of the matrix, and
  /// drops the sums beyond them. T is the factors' type; c's type is T or fp32.
  template <class T>
  void store(Range rows, Range columns, const float* sums, const float* bias) const {
    if constexpr (!std::is_same_v<T, float>) {
      if (c_.dtype != DType::fp32) {
        accumulate_ ? store_as<T, true>(rows, columns, sums, bias)
                    : store_as<T, false>(rows, columns, sums, bias);
        return;
      }
    }
    accumulate_ ? store_as<float, true>(rows, columns, sums, bias)
                : store_as<float, false>(rows, columns, sums, bias);
  }

 private:
  template <class T, bool accumulate>
  void store_as(Range rows, Range columns, const float* sums, const float* bias) const {
    for (std::int64_t v = 0; v < columns.size(); v += width) {
      T* to = const_cast<T*>(at<T>(c_, rows.begin, columns.begin + v));
      const std::int64_t count = columns.size() - v;
      c_.column == 1 ? store_rows<T, accumulate>(to, rows.size(), count, sums + v, bias + v)
                     : store_columns<T, accumulate>(to, rows.size(), count, sums + v);
    }
  }

  template <class T, bool accumulate>
  void store_rows(T* to, std::int64_t rows, std::int64_t columns, const float* sums,
                  const float* bias) const {
    const auto offset = read<Vector>(bias);
    for (std::int64_t r = 0; r < rows; ++r, to += c_.row, sums += tile_columns)
      store_first<width, accumulate>(to, columns, read<Vector>(sums) + offset);
  }

  /// For a matrix in which the values of a column are contiguous; there is no bias.
  template <class T, bool accumulate>
  void store_columns(T* to, std::int64_t rows, std::int64_t columns, const float* sums) const {
    constexpr int lanes = 8;
    static_assert(tile_rows <= lanes && lanes <= width);
    Vector x[width];
#pragma GCC unroll 16
    for (int r = 0; r < width; ++r) x[r] = r < tile_rows ? read<Vector>(sums + r * tile_columns) : Vector{};
    transpose(x);
    for (std::int64_t j = 0; j < std::min<std::int64_t>(columns, width); ++j, to += c_.column)
      store_first<lanes, accumulate, tile_rows>(to, rows, read<Lanes<lanes>::Floats>(&x[j]));
  }

  MatrixView c_;
  bool accumulate_;
};

alignas(alignment) constexpr float no_bias[tile_columns] = {};

/// A thread's part of a product.
template <class T>
struct Part {
  static constexpr bool pairs = has_pairs<T>;
  static constexpr int group = pairs ? 2 : 1;

  const MatmulOperands& o;
  const MatmulDivision& division;
  Range row_blocks;
  float* sums;
  float* panel_sums;
  float* panels;  // the panel in use and the next panel
  float* packed_rows;
  std::int64_t* groups_taken;        // shared by the threads that have the same rows
  std::int64_t packed_k_block = -1;  // the block of k in packed_rows, if all rows are packed

  Range k_range(std::int64_t block) const {
    return {block * division.k_block, std::min((block + 1) * division.k_block, o.k)};
  }
  Range column_range(std::int64_t index) const {
    return {index * tile_columns, std::min((index + 1) * tile_columns, o.n)};
  }
  Range row_range(std::int64_t block) const {
    return {block * tile_rows, std::min((block + 1) * tile_rows, o.m)};
  }
  bool is_packed(std::int64_t block) const { return division.packs_rows || (block + 1) * tile_rows > o.m; }
  float* packed_tile(std::int64_t block) const {
    return packed_rows + (division.packs_rows ? (block - row_blocks.begin) * division.packed_stride() : 0);
  }

  struct Position {
    std::int64_t panel, block;
  };
  Position take_group() const {
    return {std::atomic_ref(*groups_taken).fetch_add(1, std::memory_order_relaxed) * division.group, 0};
  }
  /// The position after `at`: the group's next panel, then its first panel in the next block of k, then a new
  /// group.
  Position after(Position at) const {
    const std::int64_t group_begin = at.panel / division.group * division.group;
    const std::int64_t group_end = std::min(group_begin + division.group, division.panels);
    if (at.panel + 1 < group_end) return {at.panel + 1, at.block};
    if (at.block + 1 < division.k_blocks) return {group_begin, at.block + 1};
    return take_group();
  }
  std::int64_t strip_size() const { return division.panel_size() / strips; }
  PanelPacking<T> packing(Position at, float* to) const {
    return {o.b, k_range(at.block), at.panel < division.panels ? column_range(at.panel) : Range{o.n, o.n},
            strip_size(), to};
  }

  /// Multiplies the blocks of rows of `a` by the panels that this part takes.
  void multiply() {
    if (row_blocks.size() == 0) return;
    Position now = take_group();
    float* packed = panels;
    float* other = panels + division.panel_size();
    packing(now, packed).advance(1, 1);
    while (now.panel < division.panels) {
      const Position then = after(now);
      PanelPacking<T> next = packing(then, other);
      multiply_panel(now, now.panel % division.group, packed, next);
      std::swap(packed, other);
      now = then;
    }
  }

  Left left(std::int64_t block, Range ks) const {
    constexpr auto size = static_cast<std::int64_t>(sizeof(float));
    if (!is_packed(block)) {
      return {reinterpret_cast<const std::byte*>(at<T>(o.a, block * tile_rows, ks.begin)),
              o.a.row * static_cast<std::int64_t>(sizeof(T)), size};
    }
    const auto* tile = reinterpret_cast<const std::byte*>(packed_tile(block));
    return o.a.column == 1 ? Left{tile, division.packed_row() * size, size}
                           : Left{tile, size, tile_rows * size};
  }
  /// The rows that are packed together, starting with a block.
  Range chunk(std::int64_t block) const {
    const std::int64_t begin = block * tile_rows;
    return {begin, std::min({begin + chunk_rows, row_blocks.end * tile_rows, o.m})};
  }
  /// The memory to prefetch for the block after this one: that block, or a share of the rows of `a` from
  /// which the next chunk will be packed.
  Pieces rows_after(std::int64_t block, Range ks, bool packs) const {
    if (block + 1 >= row_blocks.end) return {};
    if (packs && division.packs_rows) {
      const std::int64_t index = (block - row_blocks.begin) % chunk_tiles;
      const std::int64_t next = block - index + chunk_tiles;
      return next < row_blocks.end ? pieces_of(o.a, chunk(next), ks).part(index, chunk_tiles) : Pieces{};
    }
    if (!is_packed(block + 1)) return pieces_of(o.a, row_range(block + 1), ks);
    const std::int64_t bytes = ceil_div(ks.size(), group) * static_cast<std::int64_t>(sizeof(float));
    const Left tile = left(block + 1, ks);
    return {tile.data, o.a.column == 1 ? tile.row : bytes, tile_rows, bytes};
  }

  /// Multiplies this part's rows by one panel of one block of k, and packs the next panel at the same time.
  void multiply_panel(Position at, std::int64_t index, const float* packed, PanelPacking<T>& next) {
    const Range ks = k_range(at.block);
    const Range columns = column_range(at.panel);
    const bool is_last = at.block + 1 == division.k_blocks;
    const std::int64_t steps = ceil_div(ks.size(), group);
    if (o.column_sums != nullptr && row_blocks.begin == 0)
      add_columns(columns, packed, steps, at.block, panel_sums + index * tile_columns);
    alignas(alignment) float offset[tile_columns] = {};
    for (std::int64_t j = 0; o.bias != nullptr && j < columns.size(); ++j)
      offset[j] = static_cast<float>(static_cast<const T*>(o.bias)[columns.begin + j]);
    const bool packs = packed_k_block != at.block;
    packed_k_block = at.block;
    for (std::int64_t i = row_blocks.begin; i < row_blocks.end; ++i) {
      const std::int64_t done = i - row_blocks.begin;
      float* sum = division.k_blocks > 1 ? sums + (index * row_blocks.size() + done) * tile_size : sums;
      if (division.packs_rows ? packs && done % chunk_tiles == 0 : is_packed(i))
        pack_tiles<T>(o.a, chunk(i), ks, division.packed_row(), division.packed_stride(), packed_tile(i));
      const Requests requests = {.next = rows_after(i, ks, packs),
                                 .result = is_last ? pieces_of(o.c, row_range(i), columns) : Pieces{},
                                 .source = next.source()};
      multiply_tile<pairs>(steps, left(i, ks), packed, strip_size(), requests, at.block != 0, sum);
      if (is_last) Result(o.c, o.accumulate).store<T>(row_range(i), columns, sum, offset);
      next.advance(done + 1, row_blocks.size());
    }
  }

  /// sum (tile_columns) = or += the column sums of a panel. After the last block of k, stores them.
  void add_columns(Range columns, const float* packed, std::int64_t steps, std::int64_t block,
                   float* sum) const {
    constexpr std::uint32_t one = pairs ? 0x3f803f80U : 0x3f800000U;
    const auto ones = std::bit_cast<Vector>(Words{} + one);
    for (int v = 0; v < tile_columns / width; ++v) {
      const float* values = packed + v / vectors * strip_size() + v % vectors * width;
      Vector total = block != 0 ? read<Vector>(sum + v * width) : Vector{};
      for (std::int64_t p = 0; p < steps; ++p)
        total = multiply_add<pairs>(read<Vector>(values + p * strip_columns), ones, total);
      std::memcpy(sum + v * width, &total, sizeof(total));
    }
    if (block + 1 == division.k_blocks)
      Result({o.column_sums, o.c.dtype, o.n, 1}, o.accumulate).store<T>({0, 1}, columns, sum, no_bias);
  }
};

template <class T>
void multiply_part(const MatmulOperands& operands, const MatmulDivision& division, int row_part,
                   float* scratch, std::int64_t* groups_taken) {
  float* panel_sums = scratch + division.sums;
  float* panels = panel_sums + division.group * tile_columns;
  Part<T>{.o = operands,
          .division = division,
          .row_blocks = {division.row_blocks * row_part / division.row_parts,
                         division.row_blocks * (row_part + 1) / division.row_parts},
          .sums = scratch,
          .panel_sums = panel_sums,
          .panels = panels,
          .packed_rows = panels + 2 * division.panel_size(),
          .groups_taken = groups_taken}
      .multiply();
}

/// A panel of this many steps is 96 KiB, so that two panels and the rows of two tiles fit in L2 with the data
/// that stream through it.
constexpr std::int64_t most_steps = 512;

template <class T>
constexpr MatmulKernel kernel_of = {.tile = {.rows = tile_rows,
                                             .columns = tile_columns,
                                             .group = has_pairs<T> ? 2 : 1,
                                             .k_multiple = (has_pairs<T> ? 2 : 1) * width,
                                             .most_k = (has_pairs<T> ? 2 : 1) * most_steps},
                                    .multiply = multiply_part<T>};

}  // namespace
// NOLINTEND(misc-definitions-in-headers)

}  // namespace mylos::compute_onednn

#endif
