// SPDX-License-Identifier: BSD-3-Clause
// Cutting a part keeps its elements, in memory and from a source.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "io/checkpoint/tensor.hpp"

namespace mylos {
namespace {

/// The elements of a part of two dimensions, row by row.
std::vector<float> elements(const TensorPart& part) {
  std::vector<float> values;
  for (std::int64_t row = 0; row < part.box.count[0]; ++row) {
    std::vector<float> own(static_cast<std::size_t>(part.box.count[1]));
    if (part.source) {
      part.source(part.first + row * part.stride[0], own);
    } else {
      std::copy_n(part.data + row * part.stride[0], own.size(), own.begin());
    }
    values.insert(values.end(), own.begin(), own.end());
  }
  return values;
}

TEST(TensorPart, CutHasTheSameElements) {
  std::vector<float> memory(200);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const ElementSource source = [&](std::int64_t first, std::span<float> values) {
    std::copy_n(memory.begin() + first, values.size(), values.begin());
  };
  // Rows 3 to 12 and columns 2 to 8 of a tensor; rows are 11 elements apart in memory, beginning at
  // element 5.
  const Box box{.start = {3, 2}, .count = {10, 7}};
  const TensorPart in_memory{.box = box, .data = memory.data() + 5, .stride = {11, 1}};
  const TensorPart of_source{.box = box, .stride = {11, 1}, .source = source, .first = 5};
  const std::vector<float> expected = elements(in_memory);
  EXPECT_EQ(elements(of_source), expected);
  for (const TensorPart& part : {in_memory, of_source}) {
    for (const std::int64_t rows : {1, 3, 5, 10, 11}) {
      std::vector<float> seen;
      std::int64_t next = 3;
      for (const TensorPart& piece : cut(part, rows * 7 * 4 + 3)) {
        EXPECT_EQ(piece.box.start, (std::vector<std::int64_t>{next, 2}));
        EXPECT_LE(piece.box.count[0], rows);
        next += piece.box.count[0];
        const std::vector<float> own = elements(piece);
        seen.insert(seen.end(), own.begin(), own.end());
      }
      EXPECT_EQ(next, 13);
      EXPECT_EQ(seen, expected) << rows;
    }
    EXPECT_EQ(cut(part, 1).size(), 10U) << "a row at least";
  }
}

}  // namespace
}  // namespace mylos
