// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/library_operations.hpp"

#include "backends/compute_cuda/cuda_check.hpp"
#include "backends/compute_cuda/kernel_operations.hpp"

namespace mylos::compute_cuda {

LibraryOperations::LibraryOperations(ComputeBackend& memory, const Workspace& workspace,
                                     [[maybe_unused]] MemoryLedger* ledger, bool autotunes)
    : memory_(memory),
      workspace_(workspace),
      matmul_(memory, workspace, autotunes)
#if defined(MYLOS_HAVE_CUDNN)
      ,
      attention_(memory, ledger)
#endif
{
  int device = 0;
  int major = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  fuses_gelu_ = major >= 9;
}

std::size_t LibraryOperations::attention_workspace([[maybe_unused]] const PlannedAttention& attention) {
#if defined(MYLOS_HAVE_CUDNN)
  return CudnnAttention::workspace_bytes(attention);
#else
  return 0;
#endif
}

std::string LibraryOperations::libraries() {
  const std::size_t version = cublasLtGetVersion();
  std::string names = fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
#if defined(MYLOS_HAVE_CUDNN)
  names += ", cuDNN " + CudnnAttention::version();
#endif
  return names;
}

bool LibraryOperations::run(const LinearForward& op) {
  if (op.x.size() == 0) return false;
  const auto [rows, in, out] = linear_sizes(op.x, op.w, op.bias, op.y);
  require(!op.bias || op.bias.dtype == op.y.dtype, "a bias of the output's type");
  return matmul_.multiply(rows, out, in, activation_matrix(op.x), weight_matrix(op.w),
                          activation_matrix(op.y), false,
                          {op.bias ? Epilogue::bias : Epilogue::none, op.bias, nullptr});
}

bool LibraryOperations::run(const LinearAddForward& op) {
  if (op.x.size() == 0) return false;
  const auto [rows, in, out] = linear_sizes(op.x, op.w, op.bias, op.y);
  require(op.residual.size() == op.y.size() && op.residual.contiguous() && op.residual.dtype == op.y.dtype &&
              (!op.bias || op.bias.dtype == op.y.dtype),
          "linear's shapes and types");
  return matmul_.multiply(rows, out, in, activation_matrix(op.x), weight_matrix(op.w),
                          activation_matrix(op.y), false,
                          {op.bias ? Epilogue::bias : Epilogue::none, op.bias, nullptr, op.residual.data});
}

bool LibraryOperations::run(const LinearGeluForward& op) {
  const auto [rows, in, out] = linear_sizes(op.x, op.w, op.bias, op.y);
  require(op.pre.size() == op.y.size() && op.pre.contiguous() && op.pre.dtype == op.y.dtype &&
              (!op.bias || op.bias.dtype == op.y.dtype),
          "linear's shapes and types");
  return fuses_gelu_ && op.bias && op.x.size() > 0 &&
         matmul_.multiply(rows, out, in, activation_matrix(op.x), weight_matrix(op.w),
                          activation_matrix(op.y), false, {Epilogue::bias_gelu, op.bias, op.pre.data});
}

bool LibraryOperations::run(const LinearGeluBackwardInput& op) {
  const auto [rows, in, out] = linear_sizes(op.dpre, op.w, {}, op.dy);
  require(op.pre.size() == op.dpre.size() && op.pre.contiguous() && op.pre.dtype == op.dpre.dtype,
          "linear's shapes and types");
  return fuses_gelu_ && op.dy.size() > 0 &&
         matmul_.multiply(rows, in, out, activation_matrix(op.dy), weight_matrix(op.w).transposed(),
                          activation_matrix(op.dpre), false, {Epilogue::gelu_gradient, {}, op.pre.data});
}

bool LibraryOperations::run(const LinearBackwardInput& op) {
  if (op.dy.size() == 0) return false;
  const auto [rows, in, out] = linear_sizes(op.dx, op.w, {}, op.dy);
  return matmul_.multiply(rows, in, out, activation_matrix(op.dy), weight_matrix(op.w).transposed(),
                          activation_matrix(op.dx), false);
}

bool LibraryOperations::run(const LinearBackwardWeight& op) {
  if (op.x.size() == 0) return false;
  const auto [rows, in, out] = linear_sizes(op.x, op.dw, op.dbias, op.dy);
  const MatrixView gradient = weight_matrix(op.dw);
  // A transposed gradient is the row-major product dwᵀ = dyᵀ x. The bias' gradient has a kernel of its own,
  // because cuBLASLt's epilogue for it slows the product by more.
  const bool done = gradient.column == 1
                        ? matmul_.multiply(in, out, rows, activation_matrix(op.x).transposed(),
                                           activation_matrix(op.dy), gradient, op.accumulate)
                        : matmul_.multiply(out, in, rows, activation_matrix(op.dy).transposed(),
                                           activation_matrix(op.x), gradient.transposed(), op.accumulate);
  if (done && op.dbias) {
    bias_gradient(cuda_stream(memory_), op.dy, op.dbias, op.accumulate, workspace_);
  }
  return done;
}

bool LibraryOperations::run(const MatrixProduct& op) {
  for (std::int64_t i = 0; i < op.z.shape[0]; ++i) {
    if (!matmul_.multiply(op.z.shape[1], op.z.shape[2], op.inner(), matrix_of_stack(op.x, i, op.x_transposed),
                          matrix_of_stack(op.y, i, op.y_transposed), matrix_of_stack(op.z, i), false)) {
      require(i == 0, "cuBLASLt takes all matrices of a stack or none");
      return false;
    }
  }
  return true;
}

#if defined(MYLOS_HAVE_CUDNN)

bool LibraryOperations::run(const AttentionForward& op) {
  return CudnnAttention::supports(op) && attention_.forward(op);
}

bool LibraryOperations::run(const AttentionBackward& op) {
  return CudnnAttention::supports(op.forward) && attention_.backward(op);
}

#endif

}  // namespace mylos::compute_cuda
