// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/bf16_matmul.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <omp.h>
#include <type_traits>
#include <utility>

#include <dnnl.hpp>

#include "core/base/error.hpp"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define MYLOS_AVX512_BF16
#include <bit>
#include <immintrin.h>
#endif

namespace mylos::compute_onednn {

namespace {

// A tile of sums, 8 × 48 (MR × NR) in 24 of the 32 registers, needs 11 loads for 24 instructions that
// multiply.
constexpr std::int64_t tile_rows = 8;
constexpr std::int64_t vectors = 3;
constexpr std::int64_t width = 16;
constexpr std::int64_t tile_columns = vectors * width;
constexpr std::int64_t tile_size = tile_rows * tile_columns;
/// Of the summed dimension at a time (KC): a panel of b, at most 96 KiB, and the rows of a tile share L2 with
/// what streams through it.
constexpr std::int64_t most_k = 1024;
constexpr std::int64_t k_multiple = 2 * width;
/// Sums that a part keeps where one block of the summed dimension is not all: 1 MiB, or those of one panel.
constexpr std::int64_t most_sums = std::int64_t{1} << 18;
constexpr std::size_t alignment = 64;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// How a product is divided: parts, one a thread, have blocks of rows and take groups of panels of columns,
/// one after another: where there are several each, a thread that is disturbed takes fewer. Sums are over
/// blocks of k.
struct Division {
  Division(std::int64_t m, std::int64_t n, std::int64_t k, bool a_is_transposed, int threads)
      : row_blocks(ceil_div(m, tile_rows)),
        panels(ceil_div(n, tile_columns)),
        k_blocks(ceil_div(k, most_k)),
        k_block(ceil_div(ceil_div(k, k_blocks), k_multiple) * k_multiple),
        // A pair at the end of an odd row would end in the next one.
        packed_rows_begin(a_is_transposed || k % 2 != 0 ? 0 : m / tile_rows),
        packed_stride(ceil_div(k, 4) * 4 * tile_rows) {
    std::int64_t best = row_blocks * panels + 1;
    for (int rows = 1; rows <= threads; ++rows) {
      const int columns = threads / rows;
      const std::int64_t work = ceil_div(row_blocks, rows) * ceil_div(panels, columns);
      if (work >= best) continue;
      best = work;
      row_parts = rows;
      column_parts = columns;
    }
    if (k_blocks == 1) return;
    // Even groups, a multiple of the threads if there are panels enough.
    const std::int64_t panel_sums = ceil_div(row_blocks, row_parts) * tile_size;
    const std::int64_t most = std::max<std::int64_t>(most_sums / panel_sums, 1);
    group = ceil_div(panels, column_parts * ceil_div(ceil_div(panels, column_parts), most));
    sums = group * panel_sums;
  }

  int parts() const { return row_parts * column_parts; }
  /// Of a part: sums of tiles and of columns, and two panels of b.
  std::size_t part_bytes() const {
    return static_cast<std::size_t>(sums + group * tile_columns) * sizeof(float) +
           static_cast<std::size_t>(k_block * 2 * tile_columns) * sizeof(bf16);
  }
  std::size_t a_bytes() const {
    return static_cast<std::size_t>((row_blocks - packed_rows_begin) * packed_stride) * sizeof(bf16);
  }
  /// For each part of the rows, how many groups of panels were taken; a line each.
  std::size_t counter_bytes() const { return static_cast<std::size_t>(row_parts) * alignment; }
  std::size_t bytes() const {
    return counter_bytes() + a_bytes() + static_cast<std::size_t>(parts()) * part_bytes();
  }

  std::int64_t row_blocks, panels, k_blocks, k_block;
  std::int64_t packed_rows_begin;  // blocks of rows of a before it are read as they lie
  std::int64_t packed_stride;      // elements between packed blocks of rows, whole lines
  int row_parts = 1, column_parts = 1;
  std::int64_t group = 1;         // panels whose sums are kept at a time
  std::int64_t sums = tile_size;  // elements
};

}  // namespace

#if defined(MYLOS_AVX512_BF16)

namespace {

using Pairs = __m512bh;

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

/// The low `count` bits, of at most 32.
__mmask32 first(std::int64_t count) {
  return static_cast<__mmask32>((std::uint64_t{1} << std::clamp<std::int64_t>(count, 0, 32)) - 1);
}
__mmask16 first16(std::int64_t count) {
  return static_cast<__mmask16>(first(std::min<std::int64_t>(count, width)));
}

const bf16* at(const MatrixRef& matrix, std::int64_t i, std::int64_t j) {
  return static_cast<const bf16*>(matrix.data) + i * matrix.row + j * matrix.column;
}

/// Pairs along k of the rows of a tile: pair p of row r starts at data + r * row + p * pair. The tile after
/// it starts at data + next; it is 8 pieces of memory, `next_piece` apart.
struct LeftPanel {
  const bf16* data;
  std::int64_t row, pair, next, next_piece;
};

/// Memory that is about to be used: `count` pieces of `bytes` bytes.
struct Pieces {
  const std::byte* data = nullptr;
  std::int64_t stride = 0, count = 0, bytes = 0;

  template <bool write>
  void prefetch(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < std::min(end, count); ++i) {
      const std::byte* piece = data + i * stride;
      for (std::int64_t byte = 0; byte < bytes; byte += alignment) __builtin_prefetch(piece + byte, write, 3);
      __builtin_prefetch(piece + bytes - 1, write, 3);
    }
  }
};

/// matrix [rows, columns].
Pieces pieces_of(const MatrixRef& matrix, Range rows, Range columns) {
  const auto size = static_cast<std::int64_t>(size_of(matrix.dtype));
  const std::byte* data = static_cast<const std::byte*>(matrix.data) +
                          (rows.begin * matrix.row + columns.begin * matrix.column) * size;
  return matrix.column == 1 ? Pieces{data, matrix.row * size, rows.size(), columns.size() * size}
                            : Pieces{data, matrix.column * size, columns.size(), rows.size() * size};
}

/// sums (8, 48) = or += the product of `pairs` pairs of a tile's rows and of a panel. On the way it asks for
/// the rows of the next tile, for what `result` will be written to and `source` be read from, a few lines at
/// a time: the loads of the product wait behind them.
template <bool add>
[[gnu::noinline]] void multiply_tile(std::int64_t pairs, const LeftPanel& left, const bf16* b,
                                     const Pieces& result, const Pieces& source, float* sums) {
  __m512 sum[tile_rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < tile_rows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = add ? _mm512_load_ps(sums + r * tile_columns + v * width) : _mm512_setzero_ps();
  }
  const bf16* upper = left.data;
  const bf16* lower = upper + 4 * left.row;
  const std::int64_t row = left.row;
  const std::int64_t step = left.pair;
  const auto multiply_pair = [&] {
    Pairs right[vectors];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v)
      right[v] = std::bit_cast<Pairs>(_mm512_load_si512(b + static_cast<std::ptrdiff_t>(2 * v * width)));
#pragma GCC unroll 8
    for (int r = 0; r < tile_rows; ++r) {
      int pair = 0;
      std::memcpy(&pair, (r < 4 ? upper : lower) + r % 4 * row, sizeof(pair));
      const auto values = std::bit_cast<Pairs>(_mm512_set1_epi32(pair));
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], values, right[v]);
    }
    upper += step;
    lower += step;
    b += 2 * tile_columns;
  };
  const std::int64_t share = pairs / (2 * tile_rows);  // two pairs for each line of the next tile
  const std::int64_t results = ceil_div(result.count, tile_rows);
  const std::int64_t sources = ceil_div(source.count, tile_rows);
  for (std::int64_t r = 0; r < tile_rows; ++r) {
    result.prefetch<true>(r * results, (r + 1) * results);
    source.prefetch<false>(r * sources, (r + 1) * sources);
    const bf16* next = left.data + left.next + r * left.next_piece;
    for (std::int64_t p = 0; p < share; ++p, next += 32) {
      _mm_prefetch(next, _MM_HINT_T1);
      multiply_pair();
      multiply_pair();
    }
  }
  for (std::int64_t p = 2 * share * tile_rows; p < pairs; ++p) multiply_pair();
#pragma GCC unroll 8
  for (int r = 0; r < tile_rows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) _mm512_store_ps(sums + r * tile_columns + v * width, sum[r][v]);
  }
}

/// Two rows of 32 values as pairs of their columns, the first 16 of them or the last.
__m512i interleave(__m512i upper, __m512i lower, int half) {
  alignas(alignment) static constexpr auto order = [] {
    struct {
      std::uint16_t index[2][32];
    } table{};
    for (std::uint16_t i = 0; i < 64; ++i) table.index[i / 32][i % 32] = i / 2 + 32 * (i % 2);
    return table;
  }();
  return _mm512_permutex2var_epi16(upper, _mm512_load_si512(order.index[half]), lower);
}

/// to[i][j] = from[j][i] for 16 × 16 pairs, of which `rows` rows of `values` values exist. Rows of `to` are
/// those of a panel.
void transpose_pairs(const bf16* from, std::int64_t row, std::int64_t rows, std::int64_t values, bf16* to) {
  __m512i x[width];
  __m512i y[width];
  const __mmask32 mask = first(values);
#pragma GCC unroll 16
  for (int i = 0; i < width; ++i) x[i] = _mm512_maskz_loadu_epi16(i < rows ? mask : 0, from + i * row);
#pragma GCC unroll 8
  for (int i = 0; i < width; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < width; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i even_low = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    const auto store = [&](int pair, __m512i line) {
      _mm512_store_si512(to + pair * 2 * tile_columns, line);
    };
    store(i, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    store(i + 4, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    store(i + 8, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
    store(i + 12, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
  }
}

/// A panel (pairs, 48, 2) of b [rows, columns], zero where b ends, packed in steps of about 16 lines of b
/// between the tiles that are multiplied by the panel before it.
class PanelPacking {
 public:
  PanelPacking(const MatrixRef& b, Range rows, Range columns, bf16* panel)
      : b_(b),
        rows_(rows),
        columns_(columns),
        panel_(panel),
        steps_(columns.size() == 0 ? 0
               : b.column == 1     ? ceil_div(rows.size(), step_rows)
                                   : ceil_div(rows.size(), k_multiple) * vectors) {}

  /// Has made `share` of `shares` of all steps.
  void advance(std::int64_t share, std::int64_t shares) {
    for (const std::int64_t end = ceil_div(steps_ * share, shares); done_ < end; ++done_) pack(done_);
  }
  /// What the next step will read.
  Pieces source() const {
    if (done_ >= steps_) return {};
    return b_.column == 1 ? pieces_of(b_, rows_of(done_), columns_)
                          : pieces_of(b_, square_of(done_).rows, square_of(done_).columns);
  }

 private:
  static constexpr std::int64_t step_rows = 8;

  /// What a step packs where the values of a row are neighbours, and where those of a column are.
  Range rows_of(std::int64_t step) const {
    const std::int64_t begin = rows_.begin + step * step_rows;
    return {begin, std::min(begin + step_rows, rows_.end)};
  }
  struct Square {
    Range rows, columns;
  };
  Square square_of(std::int64_t step) const {
    const std::int64_t row = rows_.begin + step / vectors * k_multiple;
    const std::int64_t column = columns_.begin + step % vectors * width;
    return {{row, std::min(row + k_multiple, rows_.end)}, {column, std::min(column + width, columns_.end)}};
  }

  void pack(std::int64_t step) const {
    if (b_.column == 1) {
      interleave_rows(rows_of(step), panel_ + step * step_rows * tile_columns);
    } else {
      const Square square = square_of(step);
      transpose_pairs(at(b_, square.rows.begin, std::min(square.columns.begin, columns_.end - 1)), b_.column,
                      square.columns.size(), square.rows.size(),
                      panel_ + step / vectors * k_multiple * tile_columns + step % vectors * 2 * width);
    }
  }

  void interleave_rows(Range rows, bf16* to) const {
    const __mmask32 left = first(columns_.size());
    const __mmask32 right = first(columns_.size() - 32);
    for (std::int64_t k = rows.begin; k < rows.end; k += 2, to += 2 * tile_columns) {
      const bf16* upper = at(b_, k, columns_.begin);
      const bool is_pair = k + 1 < rows.end;
      const bf16* lower = is_pair ? upper + b_.row : upper;
      const __m512i upper_left = _mm512_maskz_loadu_epi16(left, upper);
      const __m512i lower_left = _mm512_maskz_loadu_epi16(is_pair ? left : 0, lower);
      const __m512i upper_right = _mm512_maskz_loadu_epi16(right, upper + 32);
      const __m512i lower_right = _mm512_maskz_loadu_epi16(is_pair ? right : 0, lower + 32);
      _mm512_store_si512(to, interleave(upper_left, lower_left, 0));
      _mm512_store_si512(to + 32, interleave(upper_left, lower_left, 1));
      _mm512_store_si512(to + 64, interleave(upper_right, lower_right, 0));
    }
  }

  MatrixRef b_;
  Range rows_, columns_;
  bf16* panel_;
  std::int64_t steps_;
  std::int64_t done_ = 0;
};

/// Blocks of rows of a (m, k) in pairs, [pairs][8][2] each, `stride` apart; zero where a ends.
void pack_rows(const MatrixRef& a, Range rows, std::int64_t k, std::int64_t stride, bf16* to) {
  for (std::int64_t i = rows.begin; i < rows.end; i += 4 * tile_rows) {
    const std::int64_t blocks = std::min<std::int64_t>(4, ceil_div(rows.end - i, tile_rows));
    const __mmask32 mask = first(rows.end - i);
    for (std::int64_t p = 0; p < k; p += 2) {
      const bool is_pair = p + 1 < k;
      __m512i line[2];
      if (a.row == 1) {
        const __m512i upper = _mm512_maskz_loadu_epi16(mask, at(a, i, p));
        const __m512i lower = _mm512_maskz_loadu_epi16(is_pair ? mask : 0, at(a, i, is_pair ? p + 1 : p));
        line[0] = interleave(upper, lower, 0);
        line[1] = interleave(upper, lower, 1);
      } else {
        bf16 values[4 * tile_rows][2] = {};
        for (std::int64_t r = 0; r < std::min(4 * tile_rows, rows.end - i); ++r) {
          values[r][0] = *at(a, i + r, p);
          if (is_pair) values[r][1] = *at(a, i + r, p + 1);
        }
        std::memcpy(line, values, sizeof(line));
      }
      for (std::int64_t block = 0; block < blocks; ++block) {
        bf16* out = to + ((i - rows.begin) / tile_rows + block) * stride + p * tile_rows;
        const __m512i source = line[block / 2];
        _mm256_store_si256(reinterpret_cast<__m256i*>(out), block % 2 == 0
                                                                ? _mm512_castsi512_si256(source)
                                                                : _mm512_extracti64x4_epi64(source, 1));
      }
    }
  }
}

/// sums (48) = or += the column sums of a panel.
void sum_columns(const bf16* panel, std::int64_t pairs, bool add, float* sums) {
  const auto ones = std::bit_cast<Pairs>(_mm512_set1_epi16(0x3f80));
  for (std::int64_t v = 0; v < vectors; ++v) {
    __m512 sum = add ? _mm512_load_ps(sums + v * width) : _mm512_setzero_ps();
    for (std::int64_t p = 0; p < pairs; ++p) {
      sum = _mm512_dpbf16_ps(
          sum, std::bit_cast<Pairs>(_mm512_load_si512(panel + 2 * (p * tile_columns + v * width))), ones);
    }
    _mm512_store_ps(sums + v * width, sum);
  }
}

/// Writes or adds up to 16 values to `to`, of type T.
template <class T, bool accumulate>
void store_line(std::byte* to, __mmask16 mask, __m512 values) {
  if constexpr (std::is_same_v<T, float>) {
    if (accumulate) values = _mm512_add_ps(values, _mm512_maskz_loadu_ps(mask, to));
    _mm512_mask_storeu_ps(to, mask, values);
  } else {
    if (accumulate) {
      const __m512i old = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, to));
      values = _mm512_add_ps(values, std::bit_cast<__m512>(_mm512_slli_epi32(old, 16)));
    }
    const auto rounded = std::bit_cast<__m256i>(_mm512_cvtneps_pbh(values));
    // Stores of 16-bit values under a mask are slow on Zen 4.
    if (mask == 0xffff) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
    } else if (mask == 0xff) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(rounded));
    } else {
      _mm256_mask_storeu_epi16(to, mask, rounded);
    }
  }
}

/// What a tile of sums becomes.
class Result {
 public:
  Result(const MatrixRef& c, bool accumulate) : c_(c), accumulate_(accumulate) {}

  /// sums (8, 48) + bias (48), of which `rows` and `columns` exist.
  void store(Range rows, Range columns, const float* sums, const float* bias) const {
    if (c_.dtype == DType::fp32) {
      accumulate_ ? store_as<float, true>(rows, columns, sums, bias)
                  : store_as<float, false>(rows, columns, sums, bias);
    } else {
      accumulate_ ? store_as<bf16, true>(rows, columns, sums, bias)
                  : store_as<bf16, false>(rows, columns, sums, bias);
    }
  }

 private:
  std::byte* address(std::int64_t i, std::int64_t j) const {
    return static_cast<std::byte*>(c_.data) +
           (i * c_.row + j * c_.column) * static_cast<std::int64_t>(size_of(c_.dtype));
  }

  template <class T, bool accumulate>
  void store_as(Range rows, Range columns, const float* sums, const float* bias) const {
    for (std::int64_t v = 0; v < columns.size(); v += width) {
      std::byte* to = address(rows.begin, columns.begin + v);
      const std::int64_t count = columns.size() - v;
      c_.column == 1 ? store_rows<T, accumulate>(to, rows.size(), first16(count), sums + v, bias + v)
                     : store_columns<T, accumulate>(to, first16(rows.size()), count, sums + v);
    }
  }

  template <class T, bool accumulate>
  void store_rows(std::byte* to, std::int64_t rows, __mmask16 mask, const float* sums,
                  const float* bias) const {
    const __m512 offset = _mm512_load_ps(bias);
    const std::int64_t stride = c_.row * static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t r = 0; r < rows; ++r, to += stride, sums += tile_columns)
      store_line<T, accumulate>(to, mask, _mm512_add_ps(_mm512_load_ps(sums), offset));
  }

  /// A tile's 8 rows of up to 16 columns, where a column's values are neighbours.
  template <class T, bool accumulate>
  void store_columns(std::byte* to, __mmask16 mask, std::int64_t columns, const float* sums) const {
    __m512 x[tile_rows];
    __m512 y[tile_rows];
#pragma GCC unroll 8
    for (int r = 0; r < tile_rows; ++r) x[r] = _mm512_load_ps(sums + r * tile_columns);
#pragma GCC unroll 4
    for (int r = 0; r < tile_rows; r += 2) {
      y[r] = _mm512_unpacklo_ps(x[r], x[r + 1]);
      y[r + 1] = _mm512_unpackhi_ps(x[r], x[r + 1]);
    }
    // Four values of columns i, i + 4, i + 8, i + 12 in x[i], the next four in x[i + 4].
#pragma GCC unroll 2
    for (int r = 0; r < tile_rows; r += 4) {
      x[r] = _mm512_shuffle_ps(y[r], y[r + 2], 0x44);
      x[r + 1] = _mm512_shuffle_ps(y[r], y[r + 2], 0xee);
      x[r + 2] = _mm512_shuffle_ps(y[r + 1], y[r + 3], 0x44);
      x[r + 3] = _mm512_shuffle_ps(y[r + 1], y[r + 3], 0xee);
    }
    const std::int64_t stride = c_.column * static_cast<std::int64_t>(sizeof(T));
    const auto store = [&](std::int64_t column, __m256 values) {
      if (column < columns)
        store_line<T, accumulate>(to + column * stride, mask, _mm512_castps256_ps512(values));
    };
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const auto low = std::bit_cast<__m512d>(x[i]);
      const auto high = std::bit_cast<__m512d>(x[i + 4]);
      const auto first_two = std::bit_cast<__m512>(
          _mm512_permutex2var_pd(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high));
      const auto last_two = std::bit_cast<__m512>(
          _mm512_permutex2var_pd(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high));
      store(i, _mm512_castps512_ps256(first_two));
      store(i + 4, _mm512_extractf32x8_ps(first_two, 1));
      store(i + 8, _mm512_castps512_ps256(last_two));
      store(i + 12, _mm512_extractf32x8_ps(last_two, 1));
    }
  }

  MatrixRef c_;
  bool accumulate_;
};

alignas(alignment) constexpr float no_bias[tile_columns] = {};

void widen_bias(const bf16* bias, Range columns, float* to) {
  for (std::int64_t j = 0; j < tile_columns; ++j)
    to[j] = bias != nullptr && j < columns.size() ? static_cast<float>(bias[columns.begin + j]) : 0.0F;
}

/// A thread's part of a product.
struct Part {
  const Division& division;
  std::int64_t m, n, k;
  MatrixRef a, b;
  const bf16* packed_a;
  const bf16* bias;
  MatrixRef c;
  MatrixRef column_sums;  // a row, or nothing
  bool accumulate;
  float* sums;
  float* panel_sums;
  bf16* panels;                // the one that is multiplied and the next
  std::int64_t* groups_taken;  // shared by the threads that have the same rows

  Range k_range(std::int64_t block) const {
    return {block * division.k_block, std::min((block + 1) * division.k_block, k)};
  }
  Range column_range(std::int64_t index) const {
    return {index * tile_columns, std::min((index + 1) * tile_columns, n)};
  }
  Range row_range(std::int64_t block) const {
    return {block * tile_rows, std::min((block + 1) * tile_rows, m)};
  }

  LeftPanel left(std::int64_t block, Range ks) const {
    const std::int64_t index = block - division.packed_rows_begin;
    if (index < 0) return {at(a, block * tile_rows, ks.begin), a.row, 2, tile_rows * a.row, a.row};
    return {packed_a + index * division.packed_stride + ks.begin * tile_rows, 2, 2 * tile_rows,
            division.packed_stride, ks.size()};
  }

  struct Position {
    std::int64_t panel, block;
  };
  Position take_group() const {
    return {std::atomic_ref(*groups_taken).fetch_add(1, std::memory_order_relaxed) * division.group, 0};
  }
  /// Panels of a group follow each other within a block of k.
  Position after(Position at) const {
    const std::int64_t group_begin = at.panel / division.group * division.group;
    const std::int64_t group_end = std::min(group_begin + division.group, division.panels);
    if (at.panel + 1 < group_end) return {at.panel + 1, at.block};
    if (at.block + 1 < division.k_blocks) return {group_begin, at.block + 1};
    return take_group();
  }
  PanelPacking packing(Position at, bf16* to) const {
    return {b, k_range(at.block), at.panel < division.panels ? column_range(at.panel) : Range{n, n}, to};
  }

  /// The product of blocks of rows of a and of the panels that it takes.
  void multiply(Range row_blocks) const {
    if (row_blocks.size() == 0) return;
    Position now = take_group();
    bf16* packed = panels;
    bf16* other = panels + division.k_block * tile_columns;
    packing(now, packed).advance(1, 1);
    while (now.panel < division.panels) {
      const Position then = after(now);
      PanelPacking next = packing(then, other);
      multiply_panel(row_blocks, now, now.panel % division.group, packed, next);
      std::swap(packed, other);
      now = then;
    }
  }

  /// All rows by one panel of one block of k, while the next one is packed.
  void multiply_panel(Range row_blocks, Position at, std::int64_t index, const bf16* packed,
                      PanelPacking& next) const {
    const Range ks = k_range(at.block);
    const Range columns = column_range(at.panel);
    const bool is_last = at.block + 1 == division.k_blocks;
    const std::int64_t pairs = ceil_div(ks.size(), 2);
    if (column_sums.data != nullptr && row_blocks.begin == 0)
      add_columns(columns, packed, pairs, at.block, is_last, panel_sums + index * tile_columns);
    alignas(alignment) float offset[tile_columns];
    widen_bias(bias, columns, offset);
    for (std::int64_t i = row_blocks.begin; i < row_blocks.end; ++i) {
      const std::int64_t done = i - row_blocks.begin;
      float* sum = division.k_blocks > 1 ? sums + (index * row_blocks.size() + done) * tile_size : sums;
      const Pieces source = next.source();
      const Pieces written = is_last ? pieces_of(c, row_range(i), columns) : Pieces{};
      if (at.block == 0) {
        multiply_tile<false>(pairs, left(i, ks), packed, written, source, sum);
      } else {
        multiply_tile<true>(pairs, left(i, ks), packed, written, source, sum);
      }
      if (is_last) Result(c, accumulate).store(row_range(i), columns, sum, offset);
      next.advance(done + 1, row_blocks.size());
    }
  }

  void add_columns(Range columns, const bf16* packed, std::int64_t pairs, std::int64_t block, bool is_last,
                   float* sum) const {
    sum_columns(packed, pairs, block != 0, sum);
    if (is_last) Result(column_sums, accumulate).store({0, 1}, columns, sum, no_bias);
  }
};

}  // namespace

bool Bf16Matmul::usable() {
  // The instruction sets are bit masks.
  const auto has = [isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa())](dnnl::cpu_isa set) {
    return (isa & static_cast<unsigned>(set)) == static_cast<unsigned>(set);
  };
  return has(dnnl::cpu_isa::avx512_core_bf16) && !has(dnnl::cpu_isa::avx512_core_amx);
}

void Bf16Matmul::multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef a, MatrixRef b,
                          const void* bias, MatrixRef c, bool accumulate, void* column_sums) {
  require(m > 0 && n > 0 && k > 0, "a product that is not empty");
  require(a.dtype == DType::bf16 && b.dtype == DType::bf16, "bf16 matrices");
  require(c.column == 1 || bias == nullptr, "a row-major product where there is a bias");
  const Division division(m, n, k, a.column != 1, omp_get_max_threads());
  scratch_.reserve(division.bytes());
  auto* counters = static_cast<std::byte*>(scratch_.data());
  std::memset(counters, 0, division.counter_bytes());
  auto* packed_a = reinterpret_cast<bf16*>(counters + division.counter_bytes());
  auto* parts = counters + division.counter_bytes() + division.a_bytes();
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (std::int64_t i = division.packed_rows_begin; i < division.row_blocks; i += 4) {
      pack_rows(a, {i * tile_rows, std::min((i + 4) * tile_rows, m)}, k, division.packed_stride,
                packed_a + (i - division.packed_rows_begin) * division.packed_stride);
    }
#pragma omp for schedule(static, 1)
    for (int part = 0; part < division.parts(); ++part) {
      const int row_part = part / division.column_parts;
      auto* sums = reinterpret_cast<float*>(parts + static_cast<std::size_t>(part) * division.part_bytes());
      float* panel_sums = sums + division.sums;
      auto* panels = reinterpret_cast<bf16*>(panel_sums + division.group * tile_columns);
      Part{.division = division,
           .m = m,
           .n = n,
           .k = k,
           .a = a,
           .b = b,
           .packed_a = packed_a,
           .bias = static_cast<const bf16*>(bias),
           .c = c,
           .column_sums = {column_sums, c.dtype, n, 1},
           .accumulate = accumulate,
           .sums = sums,
           .panel_sums = panel_sums,
           .panels = panels,
           .groups_taken = reinterpret_cast<std::int64_t*>(counters + row_part * alignment)}
          .multiply({division.row_blocks * row_part / division.row_parts,
                     division.row_blocks * (row_part + 1) / division.row_parts});
    }
  }
}

#else

bool Bf16Matmul::usable() {
  return false;
}

void Bf16Matmul::multiply(std::int64_t, std::int64_t, std::int64_t, MatrixRef, MatrixRef, const void*,
                          MatrixRef, bool, void*) {
  require(false, "a build with AVX-512 BF16");
}

#endif

std::size_t Bf16Matmul::scratch_bytes(std::int64_t m, std::int64_t n, std::int64_t k, bool a_is_transposed,
                                      int threads) {
  return Division(m, n, k, a_is_transposed, threads > 0 ? threads : omp_get_max_threads()).bytes();
}

}  // namespace mylos::compute_onednn
