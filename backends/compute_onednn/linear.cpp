// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/linear.hpp"

#include <algorithm>
#include <array>
#include <omp.h>

namespace mylos::compute_onednn {

namespace {

/// Whether a row-major or transposed matrix has no gaps.
bool is_dense(const TensorRef& w) {
  return w.contiguous() || (w.stride[0] == 1 && w.stride[1] == w.shape[0]);
}

/// sums (columns) = (accumulate ? sums : 0) + column sums of x (rows, columns). A thread owns its columns, as
/// many as its share so that it reads long pieces of rows, and adds rows in order, so the result does not
/// depend on the number of threads.
template <class T, class G>
void column_sums(const T* x, std::int64_t rows, std::int64_t columns, G* sums, bool accumulate) {
  constexpr std::int64_t lanes = 64;
  constexpr std::int64_t most = 1024;
  constexpr std::int64_t block = 64;
  const std::int64_t share = (columns / omp_get_max_threads() + lanes - 1) / lanes * lanes;
  const std::int64_t strip = std::clamp(share, lanes, most);
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < columns; first += strip) {
    const std::int64_t count = std::min(strip, columns - first);
    std::array<float, most> total{};
    for (std::int64_t row = 0; row < rows; row += block) {
      std::array<float, most> partial{};
      for (std::int64_t r = row; r < std::min(row + block, rows); ++r) {
        const T* in = x + r * columns + first;
        for (std::int64_t c = 0; c < count; ++c) partial[c] += static_cast<float>(in[c]);
      }
      for (std::int64_t c = 0; c < count; ++c) total[c] += partial[c];
    }
    for (std::int64_t c = 0; c < count; ++c) {
      G& sum = sums[first + c];
      sum = static_cast<G>(accumulate ? static_cast<float>(sum) + total[c] : total[c]);
    }
  }
}

bool multiplies_bf16(DType dtype) {
  return dtype == DType::bf16 && Bf16Matmul::usable();
}

}  // namespace

void OnednnTransformerOps::linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias,
                                          TensorRef y) {
  if (!MatmulCache::supports(x.dtype) || x.size() == 0) return next().linear_forward(stream, x, w, bias, y);
  const std::int64_t rows = x.size() / w.shape[0];
  require(x.shape[x.rank - 1] == w.shape[0] && y.size() == rows * w.shape[1], "linear's shapes");
  require(!bias || (bias.size() == w.shape[1] && bias.dtype == w.dtype), "a bias of the weight's type");
  if (w.dtype == DType::fp32 && is_dense(w)) {
    matmul_.inner_product(rows, w.shape[0], w.shape[1], activation_matrix(x), weight_matrix(w), bias.data,
                          activation_matrix(y));
  } else {
    multiply(rows, w.shape[1], w.shape[0], activation_matrix(x), weight_matrix(w), bias.data,
             activation_matrix(y));
  }
}

void OnednnTransformerOps::linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) {
  if (!MatmulCache::supports(dy.dtype) || dy.size() == 0)
    return next().linear_backward_input(stream, dy, w, dx);
  const std::int64_t rows = dy.size() / w.shape[1];
  require(dy.shape[dy.rank - 1] == w.shape[1] && dx.size() == rows * w.shape[0], "linear's shapes");
  multiply(rows, w.shape[0], w.shape[1], activation_matrix(dy), weight_matrix(w).transposed(), nullptr,
           activation_matrix(dx));
}

void OnednnTransformerOps::multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef a, MatrixRef b,
                                    void* bias, MatrixRef c) {
  if (multiplies_bf16(b.dtype)) {
    bf16_matmul_.multiply(m, n, k, a, b, bias, c, false);
  } else {
    matmul_.multiply(m, n, k, a, b, bias, c, false);
  }
}

void OnednnTransformerOps::linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw,
                                                  TensorRef dbias, bool accumulate) {
  if (!MatmulCache::supports(x.dtype) || x.size() == 0) {
    return next().linear_backward_weight(stream, x, dy, dw, dbias, accumulate);
  }
  const std::int64_t in = dw.shape[0];
  const std::int64_t out = dw.shape[1];
  const std::int64_t rows = x.size() / in;
  require(x.shape[x.rank - 1] == in && dy.size() == rows * out && (!dbias || dbias.size() == out),
          "linear's shapes");
  const MatrixRef gradient = weight_matrix(dw);
  if (multiplies_bf16(x.dtype)) {
    require(!dbias || dbias.dtype == dw.dtype, "gradients of one type");
    return bf16_matmul_.multiply(in, out, rows, activation_matrix(x).transposed(), activation_matrix(dy),
                                 nullptr, gradient, accumulate, dbias.data);
  }
  if (!accumulate && is_dense(dw)) {
    matmul_.weight_gradient(rows, in, out, activation_matrix(x), activation_matrix(dy), gradient);
  } else if (gradient.column == 1) {
    matmul_.multiply(in, out, rows, activation_matrix(x).transposed(), activation_matrix(dy), nullptr,
                     gradient, accumulate);
  } else {
    // dwᵀ = dyᵀ x is row-major.
    matmul_.multiply(out, in, rows, activation_matrix(dy).transposed(), activation_matrix(x), nullptr,
                     gradient.transposed(), accumulate);
  }
  if (!dbias) return;
  dispatch_float(dy.dtype, [&](auto type) {
    using T = decltype(type);
    dispatch_gradient<T>(dbias.dtype, [&](auto sum) {
      using G = decltype(sum);
      column_sums(dy.as<T>(), rows, out, dbias.as<G>(), accumulate);
    });
  });
}

}  // namespace mylos::compute_onednn
