// SPDX-License-Identifier: BSD-3-Clause
// Host reductions: sum, maximum and minimum of two elements, for the backends that reduce in host memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/base/dtype.hpp"
#include "core/communication/communicator.hpp"

namespace mylos {

/// The type in which elements of T are combined.
template <class T>
using Accumulator = std::conditional_t<std::is_integral_v<T>, T, float>;

/// Returns the reduction of two elements. Their order does not matter: in a maximum or minimum, a NaN wins,
/// and +0 is above -0.
template <ReduceOp op, class A>
A combined(A a, A b) {
  if constexpr (op == ReduceOp::sum) {
    return a + b;
  } else if constexpr (std::is_integral_v<A>) {
    return (op == ReduceOp::max) == (a > b) ? a : b;
  } else {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<A>::quiet_NaN();
    const bool a_is_above = a > b || (a == b && !std::signbit(a));
    return (op == ReduceOp::max) == a_is_above ? a : b;
  }
}

/// Calls `function.template operator()<T, op>()`, where T is the element type. Throws ExitCode::internal for
/// uint8.
decltype(auto) dispatch_reduction(DType dtype, ReduceOp op, auto&& function) {
  const auto with_type = [&]<class T>() {
    switch (op) {
      case ReduceOp::sum:
        return function.template operator()<T, ReduceOp::sum>();
      case ReduceOp::max:
        return function.template operator()<T, ReduceOp::max>();
      case ReduceOp::min:
        break;
    }
    return function.template operator()<T, ReduceOp::min>();
  };
  switch (dtype) {
    case DType::fp32:
      return with_type.template operator()<float>();
    case DType::bf16:
      return with_type.template operator()<bf16>();
    case DType::fp16:
      return with_type.template operator()<fp16>();
    case DType::int32:
      return with_type.template operator()<std::int32_t>();
    case DType::int64:
      return with_type.template operator()<std::int64_t>();
    default:
      fail(ExitCode::internal, "{} cannot be reduced", name_of(dtype));
  }
}

/// Sets in_out[i] to the reduction of in[i] and in_out[i], for `count` elements in host memory. The arrays
/// must not overlap.
void combine(DType dtype, ReduceOp op, const void* in, void* in_out, std::size_t count);

}  // namespace mylos
