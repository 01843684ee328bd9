// SPDX-License-Identifier: BSD-3-Clause
// Errors of the CUDA runtime as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include "core/base/error.hpp"

namespace mylos::compute_cuda {

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(ExitCode::internal, "{}: {}", call, cudaGetErrorString(status));
}

}  // namespace mylos::compute_cuda
