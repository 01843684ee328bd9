// SPDX-License-Identifier: BSD-3-Clause
// What the arithmetic units can do: multiply-adds on register operands, without memory accesses.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "core/base/dtype.hpp"

namespace mylos {

/// The instruction that multiplies values of a type and adds the products up in fp32, and its rate.
struct RegisterRate {
  std::string_view instruction;
  double gflops = 0.0;
};

/// Measures with as many OpenMP threads as the backend has set. The instruction is vdpbf16ps for bf16 if this
/// build, the processor and MYLOS_CPU allow it, otherwise FMA in fp32, with vectors as wide as they allow.
/// The rate is that of the fastest of nine repetitions. `meet` is called before each repetition, so that
/// ranks that measure together can wait for one another. Returns nothing in a build for processors without
/// FMA.
std::optional<RegisterRate> measure_register_rate(
    DType dtype, const std::function<void()>& meet = [] {});

}  // namespace mylos
