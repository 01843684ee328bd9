// SPDX-License-Identifier: BSD-3-Clause
// MatrixView: a matrix in either storage order.
#pragma once

#include <cstdint>

#include "core/base/dtype.hpp"
#include "core/base/tensor.hpp"

namespace mylos {

/// Element (i, j) is data[i * row + j * column].
struct MatrixView {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t row = 0;
  std::int64_t column = 1;
  std::uint64_t version = 0;  ///< as in TensorRef

  MatrixView transposed() const { return {data, dtype, column, row, version}; }
};

/// Returns a view of a weight (I, O), row-major or transposed by its strides.
inline MatrixView weight_matrix(const TensorRef& w) {
  require(w.rank == 2 && (w.stride[0] == 1 || w.stride[1] == 1), "a row-major or transposed matrix");
  return {w.data, w.dtype, w.stride[0], w.stride[1], w.version};
}

/// The sizes of a linear layer: x (rows, in), w (in, out), y (rows, out).
struct LinearSizes {
  std::int64_t rows, in, out;
};

/// Returns the sizes of a linear layer. x, w, bias and y, or their gradients, must have these sizes.
inline LinearSizes linear_sizes(const TensorRef& x, const TensorRef& w, const TensorRef& bias,
                                const TensorRef& y) {
  const LinearSizes sizes{w.shape[0] > 0 ? x.size() / w.shape[0] : 0, w.shape[0], w.shape[1]};
  require(x.shape[x.rank - 1] == sizes.in && y.shape[y.rank - 1] == sizes.out &&
              y.size() == sizes.rows * sizes.out && (!bias || bias.size() == sizes.out),
          "linear's shapes");
  return sizes;
}

/// Returns a view of matrix `index` of a stack (B, rows, columns), as its transpose if `transposed`.
inline MatrixView matrix_of_stack(const TensorRef& stack, std::int64_t index, bool transposed = false) {
  require(stack.contiguous() && stack.rank == 3, "a contiguous stack of matrices");
  const std::int64_t rows = stack.shape[1];
  const std::int64_t columns = stack.shape[2];
  const MatrixView matrix{stack.flat(index * rows * columns, rows * columns).data, stack.dtype, columns, 1};
  return transposed ? matrix.transposed() : matrix;
}

/// Returns a view of an activation (..., C), its leading dimensions folded into rows.
inline MatrixView activation_matrix(const TensorRef& x) {
  require(x.contiguous() && x.rank >= 1, "a contiguous activation");
  return {x.data, x.dtype, x.shape[x.rank - 1], 1};
}

}  // namespace mylos
