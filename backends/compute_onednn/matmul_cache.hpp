// SPDX-License-Identifier: BSD-3-Clause
// MatmulCache: oneDNN's matrix products, one primitive for each shape, and the scratchpad that they share.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>

#include <dnnl.hpp>

#include "core/compute_backend.hpp"
#include "core/memory_ledger.hpp"

namespace mylos {

/// A matrix in either storage order: element (i, j) is data[i * row + j * column].
struct MatrixRef {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t row = 0;
  std::int64_t column = 1;

  MatrixRef transposed() const { return {data, dtype, column, row}; }
};

/// Primitives are made on first use and kept: a training step after the first makes none and grows no
/// scratchpad.
class MatmulCache {
 public:
  MatmulCache(ComputeBackend& memory, MemoryLedger* ledger);
  ~MatmulCache();
  MatmulCache(const MatmulCache&) = delete;
  MatmulCache& operator=(const MatmulCache&) = delete;

  /// Whether oneDNN multiplies matrices of this type fast on this machine.
  static bool supports(DType dtype);

  /// c (m, n) = (accumulate ? c : 0) + a (m, k) b (k, n) + bias (n) of b's type or null.
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, MatrixRef a, MatrixRef b, void* bias,
                MatrixRef c, bool accumulate);

 private:
  /// What tells products apart.
  struct Key {
    std::int64_t m, n, k;
    std::int64_t a_row, a_column, b_row, b_column, c_row;
    DType a_type, b_type, c_type;
    bool bias, accumulate;
    auto operator<=>(const Key&) const = default;
  };
  struct Product {
    dnnl::matmul primitive;
    dnnl::memory a, b, bias, c, scratchpad;
    std::unordered_map<int, dnnl::memory> arguments;
    std::size_t scratchpad_bytes;
  };

  Product make(const Key& key);
  void reserve(std::size_t bytes);

  ComputeBackend& memory_;
  MemoryLedger* ledger_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Product> products_;
  void* scratchpad_ = nullptr;
  std::size_t scratchpad_bytes_ = 0;
};

}  // namespace mylos
