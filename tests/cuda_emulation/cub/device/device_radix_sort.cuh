// SPDX-License-Identifier: BSD-3-Clause
// The part of CUB that mylos uses, on the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "tests/cuda_emulation/cuda_runtime_api.h"

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value>
  static cudaError_t SortPairs(void* scratch, std::size_t& scratch_bytes, const Key* keys_in, Key* keys_out,
                               const Value* values_in, Value* values_out, int count, int /*begin_bit*/,
                               int /*end_bit*/, cudaStream_t /*stream*/) {
    if (scratch == nullptr) {
      scratch_bytes = 1;
      return cudaSuccess;
    }
    std::vector<int> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int i) { return keys_in[i]; });
    for (int i = 0; i < count; ++i) {
      keys_out[i] = keys_in[order[static_cast<std::size_t>(i)]];
      values_out[i] = values_in[order[static_cast<std::size_t>(i)]];
    }
    return cudaSuccess;
  }
};

}  // namespace cub
