// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/transformer_ops.hpp"

#include "backends/compute_cuda/cuda_check.hpp"
#include "backends/compute_cuda/kernels.hpp"

namespace mylos::compute_cuda {

CudaTransformerOps::CudaTransformerOps(ComputeBackend& next, const Workspace& workspace,
                                       [[maybe_unused]] MemoryLedger* ledger)
    : KernelTransformerOps(next, workspace),
      matmul_(next, workspace)
#if defined(MYLOS_HAVE_CUDNN)
      ,
      attention_(next, ledger)
#endif
{
  int device = 0;
  int major = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  fuses_gelu_ = major >= 9;
}

std::string CudaTransformerOps::libraries() {
  const std::size_t version = cublasLtGetVersion();
  std::string names = fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
#if defined(MYLOS_HAVE_CUDNN)
  names += ", cuDNN " + CudnnAttention::version();
#endif
  return names;
}

void CudaTransformerOps::linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias,
                                        TensorRef y) {
  if (x.size() == 0) return next().linear_forward(stream, x, w, bias, y);
  const std::int64_t rows = x.size() / w.shape[0];
  require(x.shape[x.rank - 1] == w.shape[0] && y.size() == rows * w.shape[1], "linear's shapes");
  require(!bias || (bias.size() == w.shape[1] && bias.dtype == y.dtype), "a bias of the output's type");
  if (!matmul_.multiply(stream, rows, w.shape[1], w.shape[0], activation_matrix(x), weight_matrix(w),
                        activation_matrix(y), false,
                        {bias ? Epilogue::bias : Epilogue::none, bias, nullptr})) {
    next().linear_forward(stream, x, w, bias, y);
  }
}

void CudaTransformerOps::linear_gelu_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias,
                                             TensorRef pre, TensorRef y) {
  const std::int64_t rows = x.size() / w.shape[0];
  require(x.shape[x.rank - 1] == w.shape[0] && pre.size() == rows * w.shape[1] && y.size() == pre.size() &&
              pre.contiguous() && pre.dtype == y.dtype && (!bias || bias.dtype == y.dtype),
          "linear's shapes and types");
  if (!fuses_gelu_ || !bias || x.size() == 0 ||
      !matmul_.multiply(stream, rows, w.shape[1], w.shape[0], activation_matrix(x), weight_matrix(w),
                        activation_matrix(y), false, {Epilogue::bias_gelu, bias, pre.data})) {
    TransformerOps::linear_gelu_forward(stream, x, w, bias, pre, y);
  }
}

void CudaTransformerOps::linear_gelu_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef pre,
                                                    TensorRef dpre) {
  const std::int64_t rows = dy.size() / w.shape[1];
  require(dy.shape[dy.rank - 1] == w.shape[1] && pre.size() == rows * w.shape[0] &&
              dpre.size() == pre.size() && pre.contiguous() && pre.dtype == dpre.dtype,
          "linear's shapes and types");
  if (!fuses_gelu_ || dy.size() == 0 ||
      !matmul_.multiply(stream, rows, w.shape[0], w.shape[1], activation_matrix(dy),
                        weight_matrix(w).transposed(), activation_matrix(dpre), false,
                        {Epilogue::gelu_gradient, {}, pre.data})) {
    TransformerOps::linear_gelu_backward_input(stream, dy, w, pre, dpre);
  }
}

void CudaTransformerOps::linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) {
  if (dy.size() == 0) return next().linear_backward_input(stream, dy, w, dx);
  const std::int64_t rows = dy.size() / w.shape[1];
  require(dy.shape[dy.rank - 1] == w.shape[1] && dx.size() == rows * w.shape[0], "linear's shapes");
  if (!matmul_.multiply(stream, rows, w.shape[0], w.shape[1], activation_matrix(dy),
                        weight_matrix(w).transposed(), activation_matrix(dx), false)) {
    next().linear_backward_input(stream, dy, w, dx);
  }
}

void CudaTransformerOps::linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw,
                                                TensorRef dbias, bool accumulate) {
  if (x.size() == 0) return next().linear_backward_weight(stream, x, dy, dw, dbias, accumulate);
  const std::int64_t in = dw.shape[0];
  const std::int64_t out = dw.shape[1];
  const std::int64_t rows = x.size() / in;
  require(x.shape[x.rank - 1] == in && dy.size() == rows * out && (!dbias || dbias.size() == out),
          "linear's shapes");
  const MatrixRef gradient = weight_matrix(dw);
  const auto multiply = [&](const EpilogueArgs& epilogue) {
    return matmul_.multiply(stream, in, out, rows, activation_matrix(x).transposed(), activation_matrix(dy),
                            gradient, accumulate, epilogue);
  };
  if (gradient.column == 1 && dbias && !accumulate && multiply({Epilogue::bias_gradient, dbias, nullptr})) {
    return;
  }
  // A transposed gradient is dwᵀ = dyᵀ x in rows.
  const bool done = gradient.column == 1
                        ? multiply({})
                        : matmul_.multiply(stream, out, in, rows, activation_matrix(dy).transposed(),
                                           activation_matrix(x), gradient.transposed(), accumulate);
  if (!done) return next().linear_backward_weight(stream, x, dy, dw, dbias, accumulate);
  if (dbias) kernels::bias_gradient(queue(stream), dy, dbias, accumulate, workspace());
}

#if defined(MYLOS_HAVE_CUDNN)

void CudaTransformerOps::attention_forward(Stream stream, const AttentionArgs& args) {
  if (!CudnnAttention::supports(args) || !attention_.forward(stream, args)) {
    KernelTransformerOps::attention_forward(stream, args);
  }
}

void CudaTransformerOps::attention_backward(Stream stream, const AttentionBackwardArgs& args) {
  if (!CudnnAttention::supports(args.forward) || !attention_.backward(stream, args)) {
    KernelTransformerOps::attention_backward(stream, args);
  }
}

#endif

}  // namespace mylos::compute_cuda
