// SPDX-License-Identifier: BSD-3-Clause
// The GEMM ceiling: the rate that a transformer's matrix products reach in their fastest layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "core/base/dtype.hpp"

namespace mylos {

/// The products of a transformer's linear layers with their gradients: query, key and value together (C, 3C),
/// projection (C, C), up (C, F) and down (F, C) in every layer, and the head (C, V) once.
struct GemmShapes {
  std::int64_t rows = 0;   ///< tokens of a micro-batch
  std::int64_t width = 0;  ///< C
  std::int64_t inner = 0;  ///< F
  std::int64_t layers = 0;
  std::int64_t padded_vocab = 0;  ///< V
  DType dtype = DType::fp32;
};

/// GFLOP/s of all of these products (forward, input gradient, weight gradient), one after the other, on as
/// many OpenMP threads as the backend has set. Each product counts with the median time of its fastest oneDNN
/// primitive and weight layout; the candidates include repacked layouts, and weight gradients in fp32 and in
/// `dtype`. Products have no bias and do not accumulate; their operands are out of cache. `meet` is called
/// before each of the 15 products, so that ranks that measure together can wait for one another. Returns
/// nothing without oneDNN, or if oneDNN has no fast products of this type on this machine.
std::optional<double> measure_gemm_ceiling(
    const GemmShapes& shapes, const std::function<void()>& meet = [] {});

}  // namespace mylos
