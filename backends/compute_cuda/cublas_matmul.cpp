// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/cublas_matmul.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <utility>

#include "backends/compute_cuda/cuda_check.hpp"
#include "core/memory/device_buffer.hpp"

namespace mylos::compute_cuda {

namespace {

constexpr std::uint32_t most_alignment = 16;  // bytes
constexpr int most_candidates = 8;

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : (dtype == DType::fp16 ? CUDA_R_16F : CUDA_R_32F);
}

/// By Epilogue.
constexpr cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                            CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
static_assert(std::size(epilogues) == static_cast<std::size_t>(Epilogue::gelu_gradient) + 1);

/// Whether cuBLASLt does not support the product; for some epilogues, it reports an invalid value instead.
bool refuses(cublasStatus_t status, Epilogue epilogue) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ||
         (status == CUBLAS_STATUS_INVALID_VALUE && epilogue != Epilogue::none);
}

LtHandle make_handle() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate");
  return LtHandle(handle);
}

template <class T>
void set(const LtMatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(const LtMatmulPreference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

void set_addresses(const LtMatmulDesc& desc, const EpilogueArgs& epilogue) {
  if (epilogue.vector) set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.vector.data);
  if (epilogue.matrix != nullptr) set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.matrix);
}

LtMatrixLayout make_layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t leading) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), leading),
        "cublasLtMatrixLayoutCreate");
  return LtMatrixLayout(layout);
}

/// The layout in which cuBLASLt sees the memory of a matrix (rows, columns) with unit stride along one axis.
/// `operation` turns it into the transposed matrix (columns, rows).
LtMatrixLayout make_layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row,
                           std::int64_t column, cublasOperation_t& operation) {
  const bool is_row_major = column == 1 && row >= columns;  // both strides of a matrix of one row may be 1
  operation = is_row_major ? CUBLAS_OP_N : CUBLAS_OP_T;
  return is_row_major ? make_layout(dtype, columns, rows, row)
                      : make_layout(dtype, rows, columns, std::max(column, rows));
}

/// The largest power of two up to 16 that divides all addresses. No kernel needs more, and a larger limit
/// would make the choice of a kernel depend more on where memory lies.
std::uint32_t alignment_of(std::initializer_list<const void*> pointers) {
  std::uintptr_t bits = most_alignment;
  for (const void* pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

}  // namespace

CublasMatmul::CublasMatmul(ComputeBackend& backend, const Workspace& workspace, bool autotunes)
    : backend_(backend), workspace_(workspace), handle_(make_handle()), autotunes_(autotunes) {}

bool CublasMatmul::multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b,
                            MatrixView c, bool accumulate, const EpilogueArgs& epilogue) {
  require(c.column == 1, "a row-major product");
  const TensorRef& vector = epilogue.vector;
  require(!vector || vector.size() == n, "an epilogue's vector has the product's columns");
  const Key key{m,
                n,
                k,
                a.row,
                a.column,
                b.row,
                b.column,
                c.row,
                alignment_of({a.data, b.data, c.data, vector.data, epilogue.matrix, epilogue.addend}),
                a.dtype,
                b.dtype,
                c.dtype,
                vector.dtype,
                epilogue.kind,
                accumulate || epilogue.addend != nullptr};
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, make(key, epilogue)).first;
  Plan& plan = found->second;
  if (!plan.has_algorithm) return false;
  set_addresses(plan.desc, epilogue);
  if (plan.candidates.size() > 1) tune(plan, key, a.data, b.data);
  const void* added = accumulate ? c.data : epilogue.addend;
  const cublasStatus_t status = queue(plan, a.data, b.data, added, c.data, plan.algorithm);
  plan.has_algorithm = !refuses(status, epilogue.kind);
  if (plan.has_algorithm) check(status, "cublasLtMatmul");
  return plan.has_algorithm;
}

cublasStatus_t CublasMatmul::queue(const Plan& plan, const void* a, const void* b, const void* added, void* c,
                                   const cublasLtMatmulAlgo_t& algorithm) const {
  const float alpha = 1.0F;
  const float beta = added != nullptr ? 1.0F : 0.0F;
  return cublasLtMatmul(handle_.get(), plan.desc.get(), &alpha, b, plan.left.get(), a, plan.right.get(),
                        &beta, added != nullptr ? added : c, plan.result.get(), c, plan.result.get(),
                        &algorithm, workspace_.data(), Workspace::bytes, cuda_stream(backend_));
}

void CublasMatmul::tune(Plan& plan, const Key& key, const void* a, const void* b) const {
  constexpr double least_flops = 1e9;  // below, all candidates take about as long as a kernel's launch
  constexpr int repetitions = 4;
  const auto candidates = std::exchange(plan.candidates, {});
  const cudaStream_t stream = cuda_stream(backend_);
  cudaStreamCaptureStatus capture{};
  check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  const double flops =
      2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) * static_cast<double>(key.k);
  if (flops < least_flops || capture != cudaStreamCaptureStatusNone) return;
  // The results go into memory of their own: the product's may be one of the operands, or be added to.
  const std::size_t bytes =
      static_cast<std::size_t>(key.m * std::max(key.c_row, key.n)) * size_of(key.c_type);
  DeviceBuffer result;
  try {
    result = DeviceBuffer(backend_, nullptr, MemoryCategory::workspace, bytes, "mylos::cublas::tune");
  } catch (const Error&) {
    cudaGetLastError();  // cleared; without room, cuBLASLt's first choice stays
    return;
  }
  const Event begin = backend_.create_event();
  const Event end = backend_.create_event();
  double best = std::numeric_limits<double>::infinity();
  for (const cublasLtMatmulHeuristicResult_t& candidate : candidates) {
    double seconds = std::numeric_limits<double>::infinity();
    for (int i = 0; i < repetitions; ++i) {
      backend_.record(begin);
      const cublasStatus_t status =
          queue(plan, a, b, key.accumulate ? result.data() : nullptr, result.data(), candidate.algo);
      if (status != CUBLAS_STATUS_SUCCESS) break;
      backend_.record(end);
      backend_.host_wait(end);
      if (i > 0) seconds = std::min(seconds, backend_.seconds_between(begin, end));
    }
    if (seconds >= best) continue;
    best = seconds;
    plan.algorithm = candidate.algo;
  }
}

CublasMatmul::Plan CublasMatmul::make(const Key& key, const EpilogueArgs& epilogue) const {
  cublasLtMatmulDesc_t desc = nullptr;
  check(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  Plan plan{LtMatmulDesc(desc),
            {},
            {},
            make_layout(key.c_type, key.n, key.m, std::max(key.c_row, key.n)),
            {},
            false,
            {}};
  cublasOperation_t operation{};
  plan.left = make_layout(key.b_type, key.k, key.n, key.b_row, key.b_column, operation);
  set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, operation);
  plan.right = make_layout(key.a_type, key.m, key.k, key.a_row, key.a_column, operation);
  set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, operation);
  const bool has_gelu = key.epilogue == Epilogue::bias_gelu || key.epilogue == Epilogue::gelu_gradient;
  // The heuristic does not check the alignment of the epilogue's operands. A row of the epilogue's matrix
  // must be a multiple of 16 bytes. In fp32, cuBLASLt's GELU uses an approximate tanh.
  if (key.epilogue != Epilogue::none && key.alignment < most_alignment) return plan;
  if (has_gelu && (key.n % 8 != 0 || key.c_type == DType::fp32)) return plan;
  set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[static_cast<std::size_t>(key.epilogue)]);
  if (key.epilogue != Epilogue::none && key.epilogue != Epilogue::gelu_gradient) {
    set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(key.vector_type));
  }
  if (has_gelu) set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
  set_addresses(plan.desc, epilogue);  // the heuristic reads their alignment

  cublasLtMatmulPreference_t wish = nullptr;
  check(cublasLtMatmulPreferenceCreate(&wish), "cublasLtMatmulPreferenceCreate");
  const LtMatmulPreference preference(wish);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Workspace::bytes);
  // Partial sums are added in fp32, not in the type of the result.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(preference, attribute, key.alignment);
  }
  std::array<cublasLtMatmulHeuristicResult_t, most_candidates> results{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), plan.desc.get(), plan.left.get(), plan.right.get(), plan.result.get(), plan.result.get(),
      preference.get(), autotunes_ ? most_candidates : 1, results.data(), &count);
  if (!refuses(status, key.epilogue)) check(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.has_algorithm = status == CUBLAS_STATUS_SUCCESS && count > 0;
  plan.algorithm = results.front().algo;
  plan.candidates.assign(results.begin(), results.begin() + count);
  std::erase_if(plan.candidates,
                [](const auto& candidate) { return candidate.state != CUBLAS_STATUS_SUCCESS; });
  return plan;
}

}  // namespace mylos::compute_cuda
