// SPDX-License-Identifier: BSD-3-Clause
// Column sums on a CUDA device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "core/tensor.hpp"

namespace mylos {

/// Into how many parts `column_sums` divides the rows; its workspace holds (parts, columns) fp32.
std::int64_t column_sum_parts(std::int64_t rows, std::int64_t columns, std::size_t workspace_bytes);

/// sums (C) = (accumulate ? sums : 0) + column sums of x (..., C), fp32 or bf16 both; added in fp32, in an
/// order that depends on the shape and `parts` only.
void column_sums(cudaStream_t stream, const TensorRef& x, const TensorRef& sums, bool accumulate,
                 std::int64_t parts, void* workspace);

}  // namespace mylos
