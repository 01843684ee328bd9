// SPDX-License-Identifier: BSD-3-Clause
// Consecutive elements of a checkpoint's tensor as parts.
#pragma once

#include <utility>
#include <vector>

#include "io/checkpoint/tensor.hpp"

namespace mylos {

/// Elements [begin, begin + count) of the flattened tensor, contiguous in memory at `data`.
inline std::vector<TensorPart> parts_of_range(const TensorInfo& tensor, std::int64_t begin,
                                              std::int64_t count, float* data) {
  std::vector<TensorPart> parts;
  for (PlacedBox& box : boxes_of_range(tensor.shape, begin, begin + count)) {
    parts.push_back({.box = std::move(box.box), .data = data + box.offset, .stride = std::move(box.stride)});
  }
  return parts;
}

}  // namespace mylos
