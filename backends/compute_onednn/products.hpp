// SPDX-License-Identifier: BSD-3-Clause
// Products: oneDNN's matrix products, one primitive per ProductKey.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>

#include <dnnl.hpp>

#include "core/ops/matrix_view.hpp"

namespace mylos::compute_onednn {

/// Identifies a product.
struct ProductKey {
  enum class Kind : std::uint8_t { product, product_with_packed_weights, inner_product, weight_gradient };
  Kind kind;
  std::int64_t m, n, k;
  std::int64_t a_row, a_column, b_row, b_column, c_row, c_column;
  DType a_type, b_type, c_type;
  bool bias, accumulate;
  auto operator<=>(const ProductKey&) const = default;

  /// See the functions of MatmulCache.
  static ProductKey product(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView& a,
                            const MatrixView& b, bool bias, const MatrixView& c, bool accumulate);
  static ProductKey inner_product(std::int64_t rows, std::int64_t in, std::int64_t out, const MatrixView& x,
                                  const MatrixView& w, bool bias, const MatrixView& y);
  static ProductKey weight_gradient(std::int64_t rows, std::int64_t in, std::int64_t out, const MatrixView& x,
                                    const MatrixView& dy, const MatrixView& dw);

  /// Whether weights with a version are multiplied from a packed copy if activations have `rows` rows: the
  /// copy costs a pass over the weight per step, which few rows do not repay.
  static constexpr bool packs(std::int64_t rows) { return rows >= 512; }
};

/// A primitive and its arguments.
struct Product {
  dnnl::primitive primitive;
  dnnl::memory a, b, bias, c, scratchpad;
  std::unordered_map<int, dnnl::memory> arguments;
  std::size_t scratchpad_bytes;
};

/// Primitives are made on first use, for the number of threads that OpenMP has at that time, and kept.
class Products {
 public:
  explicit Products(const dnnl::engine& engine) : engine_(engine) {}
  ~Products() = default;
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  Product& find(const ProductKey& key);
  /// Bytes of the largest scratchpad.
  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }

 private:
  /// Identifies a layout of packed weights: all products with weights of one shape use the same layout.
  struct WeightShape {
    std::int64_t k, n, row, column;
    DType dtype;
    auto operator<=>(const WeightShape&) const = default;
  };

  Product make_product(const ProductKey& key);
  Product make_inner_product(const ProductKey& key) const;
  Product make_weight_gradient(const ProductKey& key) const;

  dnnl::engine engine_;
  std::map<ProductKey, Product> products_;
  std::map<WeightShape, dnnl::memory::desc> layouts_;
  std::size_t scratchpad_bytes_ = 0;
};

/// oneDNN's name of a type that it multiplies.
inline dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

}  // namespace mylos::compute_onednn
