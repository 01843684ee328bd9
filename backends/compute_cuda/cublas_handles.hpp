// SPDX-License-Identifier: BSD-3-Clause
// cuBLASLt's errors as exceptions and its handles as owning pointers.
#pragma once

#include <cublasLt.h>
#include <memory>
#include <type_traits>

#include "core/base/error.hpp"
#include "core/base/release.hpp"

namespace mylos::compute_cuda {

inline void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ExitCode::internal, "{}: {}", call, cublasLtGetStatusString(status));
}

/// Owns a library's handle, which is a pointer.
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Release<destroy>>;

using LtHandle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using LtMatmulDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using LtMatrixLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using LtMatmulPreference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

}  // namespace mylos::compute_cuda
