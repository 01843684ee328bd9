// SPDX-License-Identifier: BSD-3-Clause
// Linear layers of a few rows, on the host: generation has one row for each text.
#pragma once

#include <cstdint>

#include "backends/compute_kokkos/views.hpp"

namespace mylos::compute_kokkos {

/// What is done with a product p = x w + bias.
struct FewRowsResult {
  TensorRef y{};         // (N, O): p, or gelu(p) or p + residual
  TensorRef pre_gelu{};  // (N, O): p; if given, y = gelu of p as it is stored
  TensorRef residual{};  // (N, O), or empty
};

/// The weights are read once, as they lie in memory, at the speed of reading. A result is a sum in fp32 whose
/// order depends on nothing but the shape and strides of w: a row has the same bits with any number of other
/// rows, at any place and with any number of threads.
class FewRows {
 public:
  static constexpr std::int64_t most_rows = 8;

  /// Computes LinearForward, LinearGeluForward or LinearAddForward of 1 to most_rows rows in host memory, and
  /// returns true. Returns false, and does nothing, for other numbers of rows or memory of a device.
  bool product(const TensorRef& x, const TensorRef& w, const TensorRef& bias, const FewRowsResult& result);

 private:
  Kokkos::View<float*, Memory> sums_;  // of the call in progress
};

}  // namespace mylos::compute_kokkos
