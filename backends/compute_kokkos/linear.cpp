// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#ifdef MYLOS_HAVE_KOKKOS_KERNELS
#include <KokkosBlas3_gemm.hpp>
#endif

#include "backends/compute_kokkos/blocked_product.hpp"
#include "backends/compute_kokkos/operations.hpp"

namespace mylos::compute_kokkos {

namespace {

/// c (m, n) = (accumulate ? c : 0) + a (m, k) b (k, n) + bias (n), summed in fp32. `bias` may be null. c has
/// unit column stride.
template <class A, class B, class C>
void blocked_gemm(const std::string& label, std::int64_t m, std::int64_t n, std::int64_t k,
                  Strided<const A> a, Strided<const B> b, const B* bias, Strided<C> c, bool accumulate) {
  blocked_product<A, B>(
      label, m, n, k, a, b, KOKKOS_LAMBDA(std::int64_t row, Lanes at, Vec value) {
        C* out = c.data + row * c.row;
        if (bias != nullptr) value = value + at.load(bias);
        if (accumulate) value = value + at.load(out);
        at.store(out, value);
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

void KokkosOperations::run(const MatrixProduct& op) {
  const std::int64_t m = op.z.shape[1];
  const std::int64_t n = op.z.shape[2];
  require(op.z.dtype == DType::fp32 && op.x.dtype == op.y.dtype, "factors of one type and an fp32 product");
  dispatch_float(op.x.dtype, [&]<class T>(T) {
    for (std::int64_t i = 0; i < op.z.shape[0]; ++i) {
      gemm<T, T, float>("mylos::matrix_product::tiles"_label, m, n, op.inner(),
                        matrix_of_stack(op.x, i, op.x_transposed), matrix_of_stack(op.y, i, op.y_transposed),
                        nullptr, matrix_of_stack(op.z, i), false);
    }
  });
}

}  // namespace mylos::compute_kokkos
