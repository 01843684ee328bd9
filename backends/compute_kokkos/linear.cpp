// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#ifdef MYLOS_HAVE_KOKKOS_KERNELS
#include <KokkosBlas3_gemm.hpp>
#endif

#include "backends/compute_kokkos/operations.hpp"
#include "backends/compute_kokkos/tile_product.hpp"
#include "core/ops/matrix_view.hpp"

namespace mylos::compute_kokkos {

namespace {

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
constexpr int block_rows = 128;
constexpr int block_columns = 256;
constexpr int block_depth = 256;
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

/// c (m, n) = (accumulate ? c : 0) + a (m, k) b (k, n) + bias (n), summed in fp32. `bias` may be null. c has
/// unit column stride.
template <class A, class B, class C>
void blocked_gemm(const std::string& label, std::int64_t m, std::int64_t n, std::int64_t k,
                  Strided<const A> a, Strided<const B> b, const B* bias, Strided<C> c, bool accumulate) {
  const std::int64_t tile_rows = (m + block_rows - 1) / block_rows;
  const std::int64_t tile_columns = (n + block_columns - 1) / block_columns;
  const std::size_t scratch = Scratch::shmem_size(block_rows * block_depth) +
                              Scratch::shmem_size(block_depth * block_columns) +
                              Scratch::shmem_size(block_rows * block_columns);
  Kokkos::parallel_for(
      label, TeamPolicy(queue(), tile_rows * tile_columns, 1).set_scratch_size(1, Kokkos::PerTeam(scratch)),
      KOKKOS_LAMBDA(const Member& member) {
        const std::int64_t i0 = member.league_rank() / tile_columns * block_rows;
        const std::int64_t j0 = member.league_rank() % tile_columns * block_columns;
        const int rows = static_cast<int>(m - i0 < block_rows ? m - i0 : block_rows);
        const int columns = static_cast<int>(n - j0 < block_columns ? n - j0 : block_columns);
        const Scratch packed_a(member.team_scratch(1), block_rows * block_depth);
        const Scratch packed_b(member.team_scratch(1), block_depth * block_columns);
        const Scratch tile(member.team_scratch(1), block_rows * block_columns);
        for (std::int64_t p0 = 0; p0 < k; p0 += block_depth) {
          const int depth = static_cast<int>(k - p0 < block_depth ? k - p0 : block_depth);
          pack<A>({a.data + i0 * a.row + p0 * a.column, a.row, a.column}, rows, depth, panel_rows,
                  packed_a.data());
          pack<B>({b.data + p0 * b.row + j0 * b.column, b.column, b.row}, columns, depth, panel_columns,
                  packed_b.data());
          for (int j = 0; j < columns; j += panel_columns) {
            for (int i = 0; i < rows; i += panel_rows) {
              panel_product<panel_rows, panel_vectors>(
                  depth, Tile<float>{packed_a.data() + i * depth, 1, panel_rows}, packed_b.data() + j * depth,
                  panel_columns, tile.data() + i * block_columns + j, block_columns, p0 > 0);
            }
          }
        }
        for (int i = 0; i < rows; ++i) {
          C* out = c.data + (i0 + i) * c.row + j0;
          for (int j = 0; j < columns; j += width) {
            const Lanes at{j, columns - j < width ? columns - j : width};
            Vec value = load(tile.data() + i * block_columns + j);
            if (bias != nullptr) value = value + at.load(bias + j0);
            if (accumulate) value = value + at.load(out);
            at.store(out, value);
          }
        }
      });
}

#ifdef MYLOS_HAVE_KOKKOS_KERNELS

template <class T>
Matrix<T> row_major(const MatrixView& a, std::int64_t rows, std::int64_t columns) {
  if (a.column != 1) std::swap(rows, columns);
  return {static_cast<T*>(a.data), static_cast<std::size_t>(rows), static_cast<std::size_t>(columns)};
}

/// The same product with Kokkos Kernels, for fp32 matrices without gaps.
void library_gemm(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView& a, const MatrixView& b,
                  const float* bias, const MatrixView& c, bool accumulate) {
  KokkosBlas::gemm(queue(), a.column == 1 ? "N" : "T", b.column == 1 ? "N" : "T", 1.0F,
                   row_major<const float>(a, m, k), row_major<const float>(b, k, n), accumulate ? 1.0F : 0.0F,
                   row_major<float>(c, m, n));
  if (bias == nullptr) return;
  Kokkos::parallel_for(
      "mylos::linear_forward::bias"_label, TeamPolicy(queue(), m, row_team_size),
      KOKKOS_LAMBDA(const Member& member) {
        float* row = static_cast<float*>(c.data) + member.league_rank() * n;
        for_row(member, n, [&](Lanes at) { at.store(row, at.load(row) + at.load(bias)); });
      });
}

bool without_gaps(const MatrixView& a, std::int64_t rows, std::int64_t columns) {
  return (a.column == 1 && a.row == columns) || (a.row == 1 && a.column == rows);
}

#endif

template <class A, class B, class C>
void gemm(const std::string& label, std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView& a,
          const MatrixView& b, const B* bias, const MatrixView& c, bool accumulate) {
  if (m == 0 || n == 0) return;
  if (c.column != 1) {
    // cᵀ = bᵀ aᵀ has unit column stride.
    return gemm<B, A, C>(label, n, m, k, b.transposed(), a.transposed(), nullptr, c.transposed(), accumulate);
  }
#ifdef MYLOS_HAVE_KOKKOS_KERNELS
  if constexpr (std::is_same_v<A, float> && std::is_same_v<B, float> && std::is_same_v<C, float>) {
    if (without_gaps(a, m, k) && without_gaps(b, k, n) && without_gaps(c, m, n)) {
      return library_gemm(m, n, k, a, b, bias, c, accumulate);
    }
  }
#endif
  blocked_gemm(label, m, n, k, strided<const A>(a), strided<const B>(b), bias, strided<C>(c), accumulate);
}

template <class T, class G>
void bias_gradient_kernel(Matrix<const T> dy, Vector<G> dbias, bool accumulate) {
  column_sums<1>(
      "mylos::linear_backward_weight::bias"_label, static_cast<std::int64_t>(dy.extent(0)),
      static_cast<std::int64_t>(dy.extent(1)),
      KOKKOS_LAMBDA(std::int64_t row, Lanes at) { return Vecs<1>{at.load(&dy(row, 0))}; },
      Kokkos::Array<G*, 1>{dbias.data()}, accumulate);
}

}  // namespace

void KokkosOperations::run(const LinearForward& op) {
  if (few_rows_.product(op.x, op.w, op.bias, {.y = op.y})) return;
  const LinearSizes sizes = linear_sizes(op.x, op.w, op.bias, op.y);
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    const T* added = op.bias ? vector<const T>(op.bias).data() : nullptr;
    gemm<T, T, T>("mylos::linear_forward::tiles"_label, sizes.rows, sizes.out, sizes.in,
                  activation_matrix(op.x), weight_matrix(op.w), added, activation_matrix(op.y), false);
  });
}

bool KokkosOperations::run(const LinearAddForward& op) {
  return few_rows_.product(op.x, op.w, op.bias, {.y = op.y, .residual = op.residual});
}

bool KokkosOperations::run(const LinearGeluForward& op) {
  return few_rows_.product(op.x, op.w, op.bias, {.y = op.y, .pre_gelu = op.pre});
}

void KokkosOperations::run(const LinearBackwardInput& op) {
  const LinearSizes sizes = linear_sizes(op.dx, op.w, {}, op.dy);
  dispatch_float(op.dy.dtype, [&]<class T>(T) {
    gemm<T, T, T>("mylos::linear_backward_input::tiles"_label, sizes.rows, sizes.in, sizes.out,
                  activation_matrix(op.dy), weight_matrix(op.w).transposed(), nullptr,
                  activation_matrix(op.dx), false);
  });
}

void KokkosOperations::run(const LinearBackwardWeight& op) {
  const LinearSizes sizes = linear_sizes(op.x, op.dw, op.dbias, op.dy);
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    dispatch_gradient<T>(op.dw.dtype, [&]<class G>(G) {
      gemm<T, T, G>("mylos::linear_backward_weight::tiles"_label, sizes.in, sizes.out, sizes.rows,
                    activation_matrix(op.x).transposed(), activation_matrix(op.dy), nullptr,
                    weight_matrix(op.dw), op.accumulate);
    });
    if (op.dbias) {
      dispatch_gradient<T>(op.dbias.dtype, [&]<class G>(G) {
        bias_gradient_kernel<T, G>(matrix<const T>(op.dy), vector<G>(op.dbias), op.accumulate);
      });
    }
  });
}

}  // namespace mylos::compute_kokkos
