// SPDX-License-Identifier: BSD-3-Clause
// Boxes of tensors, and where their elements lie in memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mylos {

/// Returns the number of elements of an array with these extents.
std::int64_t product(std::span<const std::int64_t> extents);

/// The elements of a tensor with coordinates start[d] .. start[d] + count[d] - 1 along each dimension d.
struct Box {
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> count;

  /// Returns the box that covers a tensor of this shape.
  static Box whole(std::span<const std::int64_t> shape);
  std::int64_t size() const;
  bool overlaps(const Box& other) const;
  /// Returns whether the box lies within a tensor of this shape.
  bool fits(std::span<const std::int64_t> shape) const;
};

/// A box and the place of its elements in memory: element i, with i[d] counted from start[d], lies `offset` +
/// sum of i[d] * stride[d] elements after the beginning of a buffer. The last stride is 1; every other stride
/// is a multiple of the next.
struct PlacedBox {
  Box box;
  std::int64_t offset = 0;
  std::vector<std::int64_t> stride;
};

/// Returns elements [begin, end) of a flattened tensor of this shape as boxes, in order: the rest of a row,
/// whole rows and the beginning of a row, recursively. There are at most 2 * rank - 1 boxes. Element `begin`
/// lies at offset 0, and the others follow without gaps.
std::vector<PlacedBox> boxes_of_range(std::span<const std::int64_t> shape, std::int64_t begin,
                                      std::int64_t end);

/// Returns the elements of `placed`, a box of a tensor of shape `view`, as boxes of the same tensor with
/// shape `shape`, in which neighbouring dimensions of `view` are joined.
std::vector<PlacedBox> joined_boxes(const PlacedBox& placed, std::span<const std::int64_t> view,
                                    std::span<const std::int64_t> shape);

/// Returns whether the boxes cover a tensor of this shape disjointly and completely.
bool cover_once(std::span<const std::int64_t> shape, std::vector<Box> boxes);

}  // namespace mylos
