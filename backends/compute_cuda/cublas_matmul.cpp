// SPDX-License-Identifier: BSD-3-Clause
#include "backends/compute_cuda/cublas_matmul.hpp"

#include <algorithm>
#include <initializer_list>

namespace mylos::compute_cuda {

namespace {

constexpr std::uint32_t most_alignment = 16;  // bytes

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : (dtype == DType::fp16 ? CUDA_R_16F : CUDA_R_32F);
}

/// By Epilogue. The gradient of the bias is BGRADA, because cuBLASLt's first factor, A, is b.
constexpr cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                            CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                            CUBLASLT_EPILOGUE_BGRADA};
static_assert(std::size(epilogues) == static_cast<std::size_t>(Epilogue::bias_gradient) + 1);

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

CublasMatmul::CublasMatmul(ComputeBackend& backend, const Workspace& workspace)
    : backend_(backend), workspace_(workspace), handle_(make_handle()) {}

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
                alignment_of({a.data, b.data, c.data, vector.data, epilogue.matrix}),
                a.dtype,
                b.dtype,
                c.dtype,
                vector.dtype,
                epilogue.kind,
                accumulate};
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, make(key)).first;
  Plan& plan = found->second;
  if (!plan.has_algorithm) return false;
  if (vector) set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector.data);
  if (epilogue.matrix != nullptr) set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.matrix);
  const float alpha = 1.0F;
  const float beta = accumulate ? 1.0F : 0.0F;
  const cublasStatus_t status =
      cublasLtMatmul(handle_.get(), plan.desc.get(), &alpha, b.data, plan.left.get(), a.data,
                     plan.right.get(), &beta, c.data, plan.result.get(), c.data, plan.result.get(),
                     &plan.algorithm, workspace_.data(), Workspace::bytes, cuda_stream(backend_));
  plan.has_algorithm = !refuses(status, epilogue.kind);
  if (plan.has_algorithm) check(status, "cublasLtMatmul");
  return plan.has_algorithm;
}

CublasMatmul::Plan CublasMatmul::make(const Key& key) const {
  cublasLtMatmulDesc_t desc = nullptr;
  check(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  Plan plan{LtMatmulDesc(desc),
            {},
            {},
            make_layout(key.c_type, key.n, key.m, std::max(key.c_row, key.n)),
            {},
            false};
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
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), plan.desc.get(), plan.left.get(), plan.right.get(), plan.result.get(), plan.result.get(),
      preference.get(), 1, &result, &count);
  if (!refuses(status, key.epilogue)) check(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.has_algorithm = status == CUBLAS_STATUS_SUCCESS && count > 0;
  plan.algorithm = result.algo;
  return plan;
}

}  // namespace mylos::compute_cuda
