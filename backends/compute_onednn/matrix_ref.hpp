// SPDX-License-Identifier: BSD-3-Clause
// MatrixRef: a matrix in either storage order.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"

namespace mylos {

/// Element (i, j) is data[i * row + j * column].
struct MatrixRef {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t row = 0;
  std::int64_t column = 1;
  std::uint64_t version = 0;  ///< of TensorRef: 0 for what is not a weight

  MatrixRef transposed() const { return {data, dtype, column, row, version}; }
};

}  // namespace mylos
