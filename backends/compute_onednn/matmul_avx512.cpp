// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_onednn/matmul_kernel_text.hpp"

namespace mylos::compute_onednn {

const MatmulKernel* avx512_matmul(DType type) {
  return type == DType::bf16 ? &kernel_of<bf16> : type == DType::fp16 ? &kernel_of<fp16> : &kernel_of<float>;
}

}  // namespace mylos::compute_onednn
