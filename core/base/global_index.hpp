// SPDX-License-Identifier: BSD-3-Clause
// GlobalIndex: where the elements of a rank's part of a tensor lie in the whole tensor.
#pragma once

#include <cstdint>
#include <limits>

#include "core/base/dtype.hpp"

namespace mylos {

/// Rows of `width` elements that start `pitch` elements apart in the whole tensor: element e of the rows is
/// element first + (e / width) * pitch + e % width of the tensor. The part starts at element `begin` of the
/// rows. The default is the whole tensor. Random draws are keyed by these indices, so the draws are the
/// same in every layout.
struct GlobalIndex {
  std::int64_t first = 0;
  std::int64_t width = std::numeric_limits<std::int64_t>::max();
  std::int64_t pitch = 0;
  std::int64_t begin = 0;

  /// Returns the index of the part's element e in the whole tensor.
  MYLOS_HOST_DEVICE std::int64_t operator()(std::int64_t e) const {
    return first + (begin + e) / width * pitch + (begin + e) % width;
  }
  /// Returns how many elements, starting with e, are contiguous in the whole tensor too: the rest of the row.
  MYLOS_HOST_DEVICE std::int64_t run(std::int64_t e) const { return width - (begin + e) % width; }

  friend bool operator==(const GlobalIndex&, const GlobalIndex&) = default;
};

}  // namespace mylos
