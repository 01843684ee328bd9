// SPDX-License-Identifier: BSD-3-Clause
// MatmulCache: oneDNN's matrix products, one primitive for each shape, and what they share.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>

#include <dnnl.hpp>

#include "backends/compute_onednn/packed_weights.hpp"
#include "backends/compute_onednn/scratch.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/ops/matrix_ref.hpp"

namespace mylos::compute_onednn {

/// Primitives are made on first use and kept: a training step after the first makes none and grows no
/// scratchpad.
class MatmulCache {
 public:
  MatmulCache(ComputeBackend& memory, MemoryLedger* ledger);
  ~MatmulCache() = default;
  MatmulCache(const MatmulCache&) = delete;
  MatmulCache& operator=(const MatmulCache&) = delete;

  /// Whether oneDNN multiplies matrices of this type fast on this machine.
  static bool supports(DType dtype);

  /// Whether weights with a version are multiplied from a packed copy where activations have `rows` rows: the
  /// copy costs a pass over the weight a step, which few rows do not repay.
  static constexpr bool packs(std::int64_t rows) { return rows >= 512; }

  /// c (m, n) = (accumulate ? c : 0) + a (m, k) b (k, n) + bias (n) of b's type or null. Weights `b` that
  /// have a version are multiplied from a packed copy where that pays.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef a, MatrixRef b, void* bias,
                MatrixRef c, bool accumulate);

  /// y (rows, out) = x (rows, in) w (in, out) + bias (out) of w's type or null; w dense in either order, x
  /// and y row-major. Packs weights as it goes: in fp32 as fast as the product with a packed copy.
  void inner_product(std::int64_t rows, std::int64_t in, std::int64_t out, MatrixRef x, MatrixRef w,
                     void* bias, MatrixRef y);

  /// dw (in, out) = xᵀ dy with x (rows, in) and dy (rows, out) row-major and dw dense in either order. oneDNN
  /// has a kernel for this that is faster than the product with a transposed matrix.
  void weight_gradient(std::int64_t rows, std::int64_t in, std::int64_t out, MatrixRef x, MatrixRef dy,
                       MatrixRef dw);

  /// See PackedWeights.
  void forget(const void* begin, std::size_t bytes) { packed_.forget(begin, bytes); }

 private:
  enum class Kind : std::uint8_t { product, product_with_packed_weights, inner_product, weight_gradient };
  /// What tells products apart.
  struct Key {
    Kind kind;
    std::int64_t m, n, k;
    std::int64_t a_row, a_column, b_row, b_column, c_row, c_column;
    DType a_type, b_type, c_type;
    bool bias, accumulate;
    auto operator<=>(const Key&) const = default;
  };
  /// What tells the layouts of packed weights apart: every product with one weight uses the same.
  struct WeightShape {
    std::int64_t k, n, row, column;
    DType dtype;
    auto operator<=>(const WeightShape&) const = default;
  };
  struct Product {
    dnnl::primitive primitive;
    dnnl::memory a, b, bias, c, scratchpad;
    std::unordered_map<int, dnnl::memory> arguments;
    std::size_t scratchpad_bytes;
  };

  Product& find(const Key& key);
  Product make_product(const Key& key);
  Product make_inner_product(const Key& key);
  Product make_weight_gradient(const Key& key);
  void run(Product& product, void* a, void* b, void* bias, void* c);

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Product> products_;
  std::map<WeightShape, dnnl::memory::desc> layouts_;
  PackedWeights packed_;
  Scratch scratchpad_;
};

}  // namespace mylos::compute_onednn
