// SPDX-License-Identifier: BSD-3-Clause
// cuBLASLt's errors as exceptions and its handles as owning pointers.
#pragma once

#include <cublasLt.h>
#include <memory>
#include <type_traits>

#include "core/base/error.hpp"

namespace mylos::compute_cuda {

inline void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ExitCode::internal, "{}: {}", call, cublasLtGetStatusString(status));
}

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};

/// Owns a library's handle, which is a pointer.
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;

using LtHandle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using LtMatmulDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using LtMatrixLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using LtMatmulPreference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

}  // namespace mylos::compute_cuda
