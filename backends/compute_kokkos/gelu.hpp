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

}  // namespace mylos::compute_kokkos
