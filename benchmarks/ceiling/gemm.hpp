// SPDX-License-Identifier: BSD-3-Clause
// The GEMM ceiling: what the matrix products of a transformer reach in their fastest layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "core/base/dtype.hpp"

namespace mylos {

/// The products of a transformer's linear layers with their gradients: query, key and value together (C, 3C),
/// projection (C, C), up (C, 4C) and down (4C, C) in every layer, and the head (C, V) once.
struct GemmShapes {
  std::int64_t rows = 0;   ///< tokens of a micro-batch
  std::int64_t width = 0;  ///< C
  std::int64_t layers = 0;
  std::int64_t padded_vocab = 0;  ///< V
  DType dtype = DType::fp32;
};

/// GFLOP/s of all of these products, forward, input gradient and weight gradient, one after the other, by all
/// OpenMP threads, as many as the backend has set. Each counts with the median time of the fastest primitive
/// and weight layout that oneDNN has for it, repacked layouts and both types of a weight gradient included,
/// without bias or accumulation, operands out of cache. `meet` is called before each of the 15 products:
/// there ranks that measure together wait for one another. Nothing without oneDNN, or where oneDNN has no
/// fast products of this type on this machine.
std::optional<double> measure_gemm_ceiling(
    const GemmShapes& shapes, const std::function<void()>& meet = [] {});

}  // namespace mylos
