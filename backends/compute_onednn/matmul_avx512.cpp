// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/matmul_kernel_text.hpp"

namespace mylos::compute_onednn {

const MatmulKernel* avx512_matmul(DType type) {
  switch (type) {
    case DType::bf16:
      return &kernel_of<bf16>;
    case DType::fp16:
      return &kernel_of<fp16>;
    default:
      return nullptr;
  }
}

}  // namespace mylos::compute_onednn
