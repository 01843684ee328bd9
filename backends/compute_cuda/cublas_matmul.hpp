// SPDX-License-Identifier: BSD-3-Clause
// CublasMatmul: cuBLASLt's matrix products, one plan for each Key.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "backends/compute_cuda/cublas_handles.hpp"
#include "backends/compute_cuda/workspace.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/ops/matrix_view.hpp"

namespace mylos::compute_cuda {

/// What a product does besides multiplying.
enum class Epilogue : std::uint8_t {
  none,
  bias,           ///< c += vector (n), in each row
  bias_gelu,      ///< matrix (m, n) = c + vector (n), c = gelu(matrix)
  gelu_gradient,  ///< c *= gelu'(matrix (m, n))
};

struct EpilogueArgs {
  Epilogue kind = Epilogue::none;
  TensorRef vector;              // of c's type
  void* matrix = nullptr;        // row-major, of c's type
  const void* addend = nullptr;  // added to the product if c is not, with c's layout and type
};

/// Plans are made on first use and kept. With `autotunes`, the first use of a plan measures cuBLASLt's
/// candidates.
class CublasMatmul {
 public:
  /// `backend` and `workspace` must outlive this object.
  CublasMatmul(ComputeBackend& backend, const Workspace& workspace, bool autotunes);

  /// c (m, n) = (accumulate ? c : 0) + a (m, k) b (k, n), summed in fp32, and the epilogue; c is row-major.
  /// Returns false and does nothing if cuBLASLt has no suitable algorithm.
  bool multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b, MatrixView c,
                bool accumulate, const EpilogueArgs& epilogue = {});

 private:
  /// The properties that select a plan.
  struct Key {
    std::int64_t m, n, k;
    std::int64_t a_row, a_column, b_row, b_column, c_row;
    std::uint32_t alignment;  // bytes, of all pointers
    DType a_type, b_type, c_type, vector_type;
    Epilogue epilogue;
    bool accumulate;
    auto operator<=>(const Key&) const = default;
  };
  /// cuBLASLt's matrices are column-major: to cuBLASLt, a row-major product c = a b is c' = b' a'.
  struct Plan {
    LtMatmulDesc desc;
    LtMatrixLayout left, right, result;
    cublasLtMatmulAlgo_t algorithm;
    bool has_algorithm;
    std::vector<cublasLtMatmulHeuristicResult_t> candidates;  // until the fastest is chosen
  };

  Plan make(const Key& key, const EpilogueArgs& epilogue) const;
  /// Makes the fastest candidate the plan's algorithm, unless the product is small or is being recorded.
  void tune(Plan& plan, const Key& key, const void* a, const void* b) const;
  /// c = a b + added, which may be c or null.
  cublasStatus_t queue(const Plan& plan, const void* a, const void* b, const void* added, void* c,
                       const cublasLtMatmulAlgo_t& algorithm) const;

  ComputeBackend& backend_;
  const Workspace& workspace_;
  LtHandle handle_;
  bool autotunes_;
  std::map<Key, Plan> plans_;
};

}  // namespace mylos::compute_cuda
