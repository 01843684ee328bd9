// SPDX-License-Identifier: BSD-3-Clause
// GELU, the tanh form.
#pragma once

#include "backends/compute_kokkos/lanes.hpp"

namespace mylos::compute_kokkos {

inline constexpr float sqrt_2_over_pi = 0.79788456F;
inline constexpr float gelu_cubic = 0.044715F;

/// 1 / (1 + exp(u)) with u = -2 sqrt(2 / pi) (x + 0.044715 x³). It is gelu(x) / x, because
/// tanh(-u / 2) = 2 / (1 + exp(u)) - 1.
KOKKOS_FORCEINLINE_FUNCTION Vec gelu_gate(Vec x) {
  const Vec u = Vec(-2.0F * sqrt_2_over_pi) * x * multiply_add(Vec(gelu_cubic) * x, x, Vec(1.0F));
  return Vec(1.0F) / (Vec(1.0F) + exponential(u));
}

KOKKOS_FORCEINLINE_FUNCTION Vec gelu(Vec x) {
  return x * gelu_gate(x);
}

/// The derivative of gelu.
KOKKOS_FORCEINLINE_FUNCTION Vec gelu_slope(Vec x) {
  using Kokkos::Experimental::condition;
  // Beyond the bound, the derivative is 0 or 1, and powers of x could overflow. NaN stays NaN.
  const Vec bound(30.0F);
  const Vec value = condition(x > bound, bound, condition(x < -bound, -bound, x));
  const Vec gate = gelu_gate(value);
  const Vec slope =
      Vec(2.0F * sqrt_2_over_pi) * multiply_add(Vec(3.0F * gelu_cubic) * value, value, Vec(1.0F));
  return multiply_add(value * slope, gate * (Vec(1.0F) - gate), gate);
}

}  // namespace mylos::compute_kokkos
