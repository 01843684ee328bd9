// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_kokkos/few_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "backends/compute_kokkos/dot_product.hpp"
#include "backends/compute_kokkos/gelu.hpp"
#include "core/ops/matrix_view.hpp"

namespace mylos::compute_kokkos {

namespace {

// How memory is read decides the speed (measured on Zen 4; docs/results.md has the rates). A core's loads
// alone cannot have enough cache lines under way. The hardware requests more, but only along ascending
// addresses, and beyond the end of a short run it requests lines for nothing: two threads that read the
// halves of each row of a matrix get half the speed. So
// - a thread reads whole rows if it can. The sum over the rows of w is a tree with eight leaves, whatever the
//   number of threads, so that a power of two of threads, up to eight, can have a part of the tree each.
// - Lines are requested for the second-level cache in the order in which they lie in memory, tens of KiB
//   before they are used.
// - Requests that come in faster than memory answers are lost, so one or two rows are not computed as fast
//   as possible, but as if they were more.
[[maybe_unused]] constexpr std::int64_t request_ahead = 32000;  // bytes
[[maybe_unused]] constexpr std::int64_t line = 64;
[[maybe_unused]] constexpr int leaves = 8;

/// Rows of x, of which the last is repeated as often as needed.
template <class T>
struct Rows {
  const T* data;
  std::int64_t stride;
  int count;

  const T* operator[](int n) const { return data + std::min(n, count - 1) * stride; }
  Rows from_column(std::int64_t i) const { return {data + i, stride, count}; }
};

/// Requests the lines of a matrix (rows, columns), one row after the other.
template <class T>
class LinesAhead {
 public:
  LinesAhead(const T* first, std::int64_t rows, std::int64_t columns, std::int64_t stride)
      : row_(first), rows_(rows), columns_(columns), stride_(stride) {}

  KOKKOS_FORCEINLINE_FUNCTION void request(std::int64_t lines) {
    for (std::int64_t l = 0; l < lines && rows_ > 0; ++l) {
      prefetch(row_ + place_);
      place_ += line / static_cast<std::int64_t>(sizeof(T));
      if (place_ < columns_) continue;
      place_ = 0;
      row_ += stride_;
      --rows_;
    }
  }

 private:
  const T* row_;
  std::int64_t rows_, columns_, stride_;
  std::int64_t place_ = 0;
};

/// Products with a matrix whose rows are contiguous: sums[n][c] = sum of x[n][i] w[i][c] over i, in this
/// order (or in pairs of successive i).
template <int N, class T>
class ColumnProducts {
 public:
  /// The most sums of a call.
  static constexpr std::int64_t most_sums = 8192;

  /// w (depth, columns), its rows `w_row` apart; sums (N, pitch), where `pitch` is a multiple of `step`.
  static void run(const Rows<T>& x, std::int64_t depth, const T* w, std::int64_t w_row, int columns,
                  float* sums, int pitch, LinesAhead<T>& ahead) {
    std::fill_n(sums, static_cast<std::ptrdiff_t>(N) * pitch, 0.0F);
    for (std::int64_t i = 0; i < depth; i += block) {
      const int rows = static_cast<int>(std::min<std::int64_t>(block, depth - i));
      const T* const from = w + i * w_row;
      E left[groups][N];
      take_left(x, i, rows, left);
      int c = 0;
      for (; rows == block && c + step <= columns; c += step)
        add(left, from + c, w_row, sums + c, pitch, &ahead);
      // What does not fill a block is copied into one.
      for (; c < columns; c += step) {
        T copy[block * step] = {};
        const int count = std::min(step, columns - c);
        for (int r = 0; r < rows; ++r) std::copy_n(from + r * w_row + c, count, copy + r * step);
        add(left, copy, step, sums + c, pitch, nullptr);
      }
    }
  }

  static constexpr int block = 32 / sizeof(T);  // rows of w

 private:
  using E = TileElement<T>;
  static constexpr std::int64_t size = sizeof(T);
  static constexpr int group = group_size<E>;
  static constexpr int groups = block / group;
  // Sums stay in registers for a block, of which AVX-512 has 32, and AVX2 16.
  static constexpr int vectors = N * 2 <= width ? 2 : 1;
  static_assert(group == 1 || vectors == 2);

 public:
  static constexpr int step = vectors * width;  // columns

 private:
  /// left[g][n] = group g of x[n][i], ..., x[n][i + rows - 1]; 0 beyond these.
  static void take_left(const Rows<T>& x, std::int64_t i, int rows, E (&left)[groups][N]) {
    for (int n = 0; n < N; ++n) {
      T values[block] = {};
      std::copy_n(x[n] + i, rows, values);
      for (int g = 0; g < groups; ++g) {
        if constexpr (group == 1) {
          left[g][n] = static_cast<float>(values[g]);
        } else {
          std::memcpy(&left[g][n], values + g * group, sizeof(E));
        }
      }
    }
  }

  /// sums[n][c] += left (N, block) w (block, step) for `step` columns.
  KOKKOS_FORCEINLINE_FUNCTION static void add(const E (&left)[groups][N], const T* w, std::int64_t w_row,
                                              float* sums, int pitch, LinesAhead<T>* ahead) {
    Vec sum[N][vectors];
    for (int n = 0; n < N; ++n) {
      for (int v = 0; v < vectors; ++v) sum[n][v] = load(sums + n * pitch + v * width);
    }
    for (int g = 0; g < groups; ++g) {
      constexpr std::int64_t lines = block * step * size / line;  // of w
      if (ahead != nullptr) ahead->request((g + 1) * lines / groups - g * lines / groups);
      decltype(load_values(w)) right[vectors];
      if constexpr (group == 1) {
        for (int v = 0; v < vectors; ++v) right[v] = load(w + g * w_row + v * width);
      } else {
        for (int v = 0; v < vectors; ++v)
          right[v] = load_pairs(w + 2 * g * w_row + v * width, w + (2 * g + 1) * w_row + v * width);
      }
      for (int n = 0; n < N; ++n) {
        for (int v = 0; v < vectors; ++v) sum[n][v] = dot_add(left[g][n], right[v], sum[n][v]);
      }
    }
    for (int n = 0; n < N; ++n) {
      for (int v = 0; v < vectors; ++v) store(sums + n * pitch + v * width, sum[n][v]);
    }
  }
};

/// Products with a matrix whose columns are contiguous: sums[n][c] = dot product of x[n] and column c.
template <int N, class T>
class DotProducts {
 public:
  /// w (depth, columns), its columns `w_column` apart.
  static void run(Rows<T> x, std::int64_t depth, const T* w, std::int64_t w_column, int columns, float* sums,
                  int pitch) {
    int c = 0;
    for (; c + at_once <= columns; c += at_once)
      add<at_once>(x, depth, w + c * w_column, w_column, sums + c, pitch);
    for (; c < columns; ++c) add<1>(x, depth, w + c * w_column, w_column, sums + c, pitch);
  }

 private:
  // One column after the other is one sequence of addresses, but many rows of x are not loaded for each.
  static constexpr int at_once = N == 1 ? 1 : 2;

  template <int M>
  static void add(const Rows<T>& x, std::int64_t depth, const T* w, std::int64_t w_column, float* sums,
                  int pitch) {
    const T* rows[N];
    for (int n = 0; n < N; ++n) rows[n] = x[n];
    float sum[N][M];
    dot_products<N, M>(depth, rows, w, w_column, M > 1 ? request_ahead / 2 : 0, sum);
    for (int n = 0; n < N; ++n) std::copy_n(sum[n], M, sums + n * pitch);
  }
};

/// The pointers of a call.
template <class T>
struct Call {
  Rows<T> x;
  MatrixView w;
  LinearSizes sizes;
  const T* bias;
  T* pre_gelu;
  const T* residual;
  T* y;

  /// Stores what becomes of the products at columns [first, first + count).
  void finish(const float* sums, int pitch, std::int64_t first, int count) const {
    for (int n = 0; n < x.count; ++n) {
      const std::int64_t place = n * sizes.out + first;
      for (int c = 0; c < count; c += width) {
        const Lanes at{c, std::min(count - c, width)};
        Vec value = at.load(sums + static_cast<std::ptrdiff_t>(n) * pitch);
        if (bias != nullptr) value = value + at.load(bias + first);
        if (residual != nullptr) value = value + at.load(residual + place);
        if (pre_gelu != nullptr) {
          at.store(pre_gelu + place, value);
          value = gelu(at.load(pre_gelu + place));
        }
        at.store(y + place, value);
      }
    }
  }
};

/// Calls f(first, count) for even strips of columns [first, last), each at most `most` columns.
template <class Function>
void for_strips(std::int64_t first, std::int64_t last, std::int64_t most, const Function& f) {
  const std::int64_t strips = (last - first + most - 1) / most;
  if (strips == 0) return;
  const std::int64_t strip = ((last - first + strips - 1) / strips + 63) / 64 * 64;
  for (std::int64_t at = first; at < last; at += strip) f(at, static_cast<int>(std::min(strip, last - at)));
}

/// The columns of `part` of `parts`, as multiples of 64.
struct Share {
  std::int64_t first, last;

  Share(std::int64_t columns, std::int64_t part, std::int64_t parts) {
    const std::int64_t share = ((columns + parts - 1) / parts + 63) / 64 * 64;
    first = std::min(columns, part * share);
    last = std::min(columns, first + share);
  }
};

/// Computes the columns of w one by one, divided among the threads.
template <int N, class T>
void dot_products_of(const Call<T>& call) {
  constexpr std::int64_t most = 512;
  const std::int64_t threads = queue().concurrency();
  Kokkos::parallel_for(
      "mylos::linear_forward::dot_products"_label, Range(queue(), 0, threads), [&](std::int64_t thread) {
        alignas(line) float sums[N * most];
        const Share share(call.sizes.out, thread, threads);
        for_strips(share.first, share.last, most, [&](std::int64_t at, int count) {
          const auto* w = static_cast<const T*>(call.w.data) + at * call.w.column;
          DotProducts<N, T>::run(call.x, call.sizes.in, w, call.w.column, count, sums, count);
          call.finish(sums, count, at, count);
        });
      });
}

/// to[n][c] += from[n][c], both (N, pitch).
[[maybe_unused]] void add_sums(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += width) store(to + i, load(from + i) + load(to + i));
}

/// The leaves' rows of w, in whole blocks: the same for any number of threads.
template <int block>
struct Leaves {
  std::int64_t depth, rows;

  explicit Leaves(std::int64_t depth_)
      : depth(depth_), rows((depth_ + leaves * block - 1) / (leaves * block) * block) {}
  std::int64_t begin(int leaf) const { return std::min(depth, leaf * rows); }
};

/// Computes the rows of w one by one. A thread has leaves of the tree, and columns. `memory` gives a number
/// of floats.
template <int N, class T, class Memory>
void column_products_of(const Call<T>& call, const Memory& memory) {
  using Products = ColumnProducts<N, T>;
  const auto threads = static_cast<std::int64_t>(queue().concurrency());
  // Subtrees of equal size.
  const int parts = static_cast<int>(std::gcd(threads, static_cast<std::int64_t>(leaves)));
  const std::int64_t column_parts = threads / parts;
  const int own_leaves = leaves / parts;
  const std::int64_t out = call.sizes.out;
  constexpr int levels = 3;  // of the tree, below its root
  static_assert(1 << levels == leaves);
  const std::int64_t pitch_of_parts = (out + Products::step - 1) / Products::step * Products::step;
  const std::int64_t size_of_part = parts > 1 ? N * pitch_of_parts : 0;
  float* const partial = memory(parts * size_of_part + threads * levels * Products::most_sums);
  float* const pending = partial + parts * size_of_part;
  const Leaves<Products::block> division(call.sizes.in);

  Kokkos::parallel_for(
      "mylos::linear_forward::few_rows"_label, Range(queue(), 0, threads), [&](std::int64_t thread) {
        alignas(line) float sums[Products::most_sums];
        const auto part = static_cast<int>(thread % parts);
        const int first_leaf = part * own_leaves;
        const Share share(out, thread / parts, column_parts);
        for_strips(share.first, share.last, Products::most_sums / N, [&](std::int64_t at, int count) {
          const int pitch = (count + Products::step - 1) / Products::step * Products::step;
          const auto* const w = static_cast<const T*>(call.w.data) + at;
          const std::int64_t begin = division.begin(first_leaf);
          LinesAhead<T> ahead(w + begin * call.w.row, division.begin(first_leaf + own_leaves) - begin, count,
                              call.w.row);
          ahead.request(
              std::max<std::int64_t>(request_ahead, Products::block * count * std::int64_t{sizeof(T)}) /
              line);
          for (int leaf = 0; leaf < own_leaves; ++leaf) {
            const std::int64_t i = division.begin(first_leaf + leaf);
            Products::run(call.x.from_column(i), division.begin(first_leaf + leaf + 1) - i,
                          w + i * call.w.row, call.w.row, count, sums, pitch, ahead);
            float* waiting = pending + thread * levels * Products::most_sums;  // the left sibling, by level
            int level = leaf;
            for (; level % 2 == 1; level /= 2, waiting += Products::most_sums)
              add_sums(waiting, std::int64_t{N} * pitch, sums);
            if (leaf + 1 < own_leaves) std::copy_n(sums, N * pitch, waiting);
          }
          if (parts == 1) return call.finish(sums, pitch, at, count);
          for (int n = 0; n < N; ++n)
            std::copy_n(sums + n * pitch, count, partial + part * size_of_part + n * pitch_of_parts + at);
        });
      });
  if (parts == 1) return;
  const auto finish = [&](const Share& share) {
    for_strips(share.first, share.last, 512, [&](std::int64_t at, int count) {
      alignas(line) float sums[N * 512];
      for (int n = 0; n < call.x.count; ++n) {
        for (int c = 0; c < count; c += width) {
          const Lanes lanes{at + c, std::min(count - c, width)};
          Vec terms[leaves];
          for (int p = 0; p < parts; ++p)
            terms[p] = lanes.load(partial + p * size_of_part + n * pitch_of_parts);
          for (int half = 1; half < parts; half *= 2) {
            for (int p = 0; p < parts; p += 2 * half) terms[p] = terms[p] + terms[p + half];
          }
          store(sums + n * 512 + c, terms[0]);
        }
      }
      call.finish(sums, 512, at, count);
    });
  };
  if (is_tiny(call.x.count * out)) return finish(Share(out, 0, 1));
  Kokkos::parallel_for("mylos::linear_forward::few_rows_sum"_label, Range(queue(), 0, threads),
                       [&](std::int64_t thread) { finish(Share(out, thread, threads)); });
}

template <class T, class Memory>
void run_call(const Call<T>& call, const Memory& memory) {
  const int rows = call.x.count;
  if (call.w.column == 1) {
    if constexpr (sizeof(T) == 2) {
      if (rows <= 2) return column_products_of<2>(call, memory);
    }
    return rows <= 4 ? column_products_of<4>(call, memory) : column_products_of<8>(call, memory);
  }
  if (rows == 1) return dot_products_of<1>(call);
  if (rows == 2) return dot_products_of<2>(call);
  return rows <= 4 ? dot_products_of<4>(call) : dot_products_of<8>(call);
}

}  // namespace

bool FewRows::product(const TensorRef& x, const TensorRef& w, const TensorRef& bias,
                      const FewRowsResult& result) {
  const LinearSizes sizes = linear_sizes(x, w, bias, result.y);
  if (!on_host || sizes.rows < 1 || sizes.rows > most_rows) return false;
  dispatch_float(x.dtype, [&]<class T>(T) {
    if constexpr (on_host) {
      const auto pointer = [](const TensorRef& tensor) {
        return tensor ? vector<T>(tensor).data() : nullptr;
      };
      require(w.dtype == x.dtype, "weights of the activations' type");
      const Call<T> call{.x = {pointer(x), sizes.in, static_cast<int>(sizes.rows)},
                         .w = weight_matrix(w),
                         .sizes = sizes,
                         .bias = pointer(bias),
                         .pre_gelu = pointer(result.pre_gelu),
                         .residual = pointer(result.residual),
                         .y = pointer(result.y)};
      run_call(call, [&](std::int64_t floats) {
        const auto size = static_cast<std::size_t>(floats);
        if (sums_.size() < size) {
          sums_ = {};
          sums_ =
              decltype(sums_)(Kokkos::view_alloc("mylos::few_rows::sums", Kokkos::WithoutInitializing), size);
        }
        return sums_.data();
      });
    }
  });
  return true;
}

}  // namespace mylos::compute_kokkos
