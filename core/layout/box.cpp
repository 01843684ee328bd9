// SPDX-License-Identifier: BSD-3-Clause
#include "core/layout/box.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

#include "core/base/error.hpp"

namespace mylos {

namespace {

/// Returns the strides of a dense row-major array.
std::vector<std::int64_t> dense_strides(std::span<const std::int64_t> extents) {
  std::vector<std::int64_t> stride(extents.size(), 1);
  for (std::size_t d = extents.size(); d-- > 1;) stride[d - 1] = stride[d] * extents[d];
  return stride;
}

/// Appends boxes for elements [begin, end) of the flattened dimensions outer.size() and up. `outer` holds the
/// coordinates along the dimensions before them. Element `begin` lies at `offset` in memory.
void append_range(std::span<const std::int64_t> shape, std::int64_t begin, std::int64_t end,
                  const std::vector<std::int64_t>& outer, std::int64_t offset,
                  std::vector<PlacedBox>& boxes) {
  const std::size_t dim = outer.size();
  const std::int64_t inner = product(shape.subspan(dim + 1));
  const auto within_row = [&](std::int64_t row, std::int64_t from, std::int64_t to) {
    std::vector<std::int64_t> coordinates = outer;
    coordinates.push_back(row);
    append_range(shape, from, to, coordinates, offset, boxes);
    offset += to - from;
  };
  if (begin % inner != 0) {
    const std::int64_t row = begin / inner;
    const std::int64_t to = std::min(end, (row + 1) * inner);
    within_row(row, begin - row * inner, to - row * inner);
    begin = to;
  }
  if (const std::int64_t rows = (end - begin) / inner; rows > 0) {
    Box box{.start = outer, .count = std::vector<std::int64_t>(dim, 1)};
    box.start.push_back(begin / inner);
    box.count.push_back(rows);
    for (std::size_t d = dim + 1; d < shape.size(); ++d) {
      box.start.push_back(0);
      box.count.push_back(shape[d]);
    }
    std::vector<std::int64_t> stride = dense_strides(box.count);
    boxes.push_back({std::move(box), offset, std::move(stride)});
    begin += rows * inner;
    offset += rows * inner;
  }
  if (begin < end) within_row(begin / inner, 0, end - begin);
}

}  // namespace

std::int64_t product(std::span<const std::int64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

Box Box::whole(std::span<const std::int64_t> shape) {
  return {.start = std::vector<std::int64_t>(shape.size(), 0), .count = {shape.begin(), shape.end()}};
}

std::int64_t Box::size() const {
  return product(count);
}

bool Box::overlaps(const Box& other) const {
  for (std::size_t d = 0; d < start.size(); ++d) {
    if (start[d] >= other.start[d] + other.count[d] || other.start[d] >= start[d] + count[d]) return false;
  }
  return true;
}

bool Box::fits(std::span<const std::int64_t> shape) const {
  if (start.size() != shape.size() || count.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (start[d] < 0 || count[d] < 0 || start[d] > shape[d] - count[d]) return false;
  }
  return true;
}

std::vector<PlacedBox> boxes_of_range(std::span<const std::int64_t> shape, std::int64_t begin,
                                      std::int64_t end) {
  std::vector<PlacedBox> boxes;
  if (begin < end) append_range(shape, begin, end, {}, 0, boxes);
  return boxes;
}

std::vector<PlacedBox> joined_boxes(const PlacedBox& placed, std::span<const std::int64_t> view,
                                    std::span<const std::int64_t> shape) {
  require(product(view) == product(shape), "a shape that joins dimensions of the view");
  std::vector<PlacedBox> boxes = {{.box = {}, .offset = placed.offset, .stride = {}}};
  std::size_t first = 0;
  for (std::size_t s = 0; s < shape.size(); ++s) {
    // Dimensions first .. last of the view form dimension s of the shape. The last dimension of the shape
    // also includes the trailing dimensions of the view that have extent 1.
    std::size_t last = first;
    for (std::int64_t n = view[first]; n < shape[s];) n *= view[++last];
    if (s + 1 == shape.size()) last = view.size() - 1;
    // Dimensions cut .. last become one dimension: the box spans all indices of the dimensions after `cut`,
    // and these dimensions are dense in memory. Each combination of indices of dimensions first .. cut - 1
    // gets a box of its own.
    std::size_t cut = last;
    while (cut > first && placed.box.count[cut] == view[cut] &&
           placed.stride[cut - 1] == placed.stride[cut] * view[cut]) {
      --cut;
    }
    std::vector<PlacedBox> next;
    for (const PlacedBox& box : boxes) {
      const std::int64_t combinations = product(std::span(placed.box.count).subspan(first, cut - first));
      for (std::int64_t i = 0; i < combinations; ++i) {
        PlacedBox part = box;
        std::int64_t start = 0;
        std::int64_t rest = i;
        std::vector<std::int64_t> index(cut - first);
        for (std::size_t d = cut; d-- > first;) {
          index[d - first] = rest % placed.box.count[d];
          rest /= placed.box.count[d];
          part.offset += index[d - first] * placed.stride[d];
        }
        for (std::size_t d = first; d <= last; ++d) {
          start = start * view[d] + placed.box.start[d] + (d < cut ? index[d - first] : 0);
        }
        part.box.start.push_back(start);
        part.box.count.push_back(product(std::span(placed.box.count).subspan(cut, last - cut + 1)));
        part.stride.push_back(placed.stride[last]);
        next.push_back(std::move(part));
      }
    }
    boxes = std::move(next);
    first = last + 1;
  }
  return boxes;
}

bool cover_once(std::span<const std::int64_t> shape, std::vector<Box> boxes) {
  std::int64_t left = product(shape);
  for (const Box& box : boxes) {
    if (!box.fits(shape) || box.size() > left) return false;
    left -= box.size();
  }
  if (left != 0) return false;
  // The boxes have as many elements as the tensor, so they cover it if no two overlap. Only boxes that share
  // an index of the first dimension can overlap, so each box is compared only with earlier boxes that extend
  // past its start.
  std::erase_if(boxes, [](const Box& box) { return box.size() == 0; });
  std::ranges::sort(boxes, {}, [](const Box& box) { return box.start[0]; });
  std::vector<const Box*> open;
  for (const Box& box : boxes) {
    std::erase_if(open, [&](const Box* other) { return other->start[0] + other->count[0] <= box.start[0]; });
    if (std::ranges::any_of(open, [&](const Box* other) { return other->overlaps(box); })) return false;
    open.push_back(&box);
  }
  return true;
}

}  // namespace mylos
