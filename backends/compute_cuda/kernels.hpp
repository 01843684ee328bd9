// SPDX-License-Identifier: BSD-3-Clause
// Hand-written kernels for operations of core/ops/operations.hpp, which documents shapes and meanings. A
// function that returns a bool does nothing and returns false if it does not support the tensors. Attention
// supports heads of at most 128 elements. GELU, the residual sum, layernorm, cross-entropy and AdamW require
// addresses that are multiples of 16 bytes. Except in AdamW, the size of a row (in GELU and the residual sum,
// of the whole tensor) must be such a multiple too. Layernorm does not support an empty x.
#pragma once

#include <cuda_runtime_api.h>

#include "backends/compute_cuda/workspace.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos::compute_cuda::kernels {

void bias_gradient(cudaStream_t stream, TensorRef dy, TensorRef dbias, bool accumulate,
                   const Workspace& workspace);

bool gelu_forward(cudaStream_t stream, TensorRef x, TensorRef y);
bool gelu_backward(cudaStream_t stream, TensorRef x, TensorRef dy, TensorRef dx);
/// Without dropout.
bool residual_add(cudaStream_t stream, TensorRef x, TensorRef residual, TensorRef y);

/// The layernorm of x, or of total = x + residual if there is a residual. total may be the memory of x or of
/// residual.
bool layernorm_forward(cudaStream_t stream, TensorRef x, TensorRef residual, TensorRef total, TensorRef gamma,
                       TensorRef beta, TensorRef y, TensorRef mean, TensorRef rstd);
bool layernorm_backward_input(cudaStream_t stream, TensorRef dy, TensorRef x, TensorRef gamma, TensorRef mean,
                              TensorRef rstd, TensorRef residual, TensorRef dx);
void layernorm_backward_weight(cudaStream_t stream, TensorRef dy, TensorRef x, TensorRef mean, TensorRef rstd,
                               TensorRef dgamma, TensorRef dbeta, bool accumulate,
                               const Workspace& workspace);

bool attention_forward(cudaStream_t stream, const AttentionForward& args);
bool attention_backward(cudaStream_t stream, const AttentionBackward& args);

bool cross_entropy(cudaStream_t stream, const CrossEntropy& op);

/// The token part of embedding_backward, by a sort; false if the workspace is too small for it.
bool token_gradient(cudaStream_t stream, TensorRef tokens, TensorRef dout, std::int64_t first_token,
                    TensorRef dwte, bool accumulate, const Workspace& workspace);
void position_gradient(cudaStream_t stream, TensorRef dout, std::int64_t position, TensorRef dwpe,
                       bool accumulate);

void sum(cudaStream_t stream, TensorRef x, TensorRef out, bool accumulate, const Workspace& workspace);
void sum_of_squares(cudaStream_t stream, TensorRef x, float factor, TensorRef out, bool accumulate,
                    const Workspace& workspace);

bool adamw(cudaStream_t stream, const AdamWStep& args, const Workspace& workspace);

}  // namespace mylos::compute_cuda::kernels
