// SPDX-License-Identifier: BSD-3-Clause
// place_rows: copies and transposes matrices in memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mylos {

/// Converts `rows` rows of `columns` elements and spreads them over memory with these strides.
template <class From, class To>
void place_rows(const From* source, std::int64_t rows, std::int64_t columns, To* target,
                std::int64_t row_stride, std::int64_t column_stride) {
  if (column_stride == 1) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        target[r * row_stride + c] = static_cast<To>(source[r * columns + c]);
    return;
  }
  constexpr std::int64_t tile = 32;  // rows and columns of a tile stay in the cache
  for (std::int64_t r0 = 0; r0 < rows; r0 += tile)
    for (std::int64_t c0 = 0; c0 < columns; c0 += tile)
      for (std::int64_t c = c0; c < std::min(c0 + tile, columns); ++c)
        for (std::int64_t r = r0; r < std::min(r0 + tile, rows); ++r)
          target[r * row_stride + c * column_stride] = static_cast<To>(source[r * columns + c]);
}

}  // namespace mylos
