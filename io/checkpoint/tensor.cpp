// SPDX-License-Identifier: BSD-3-Clause
#include "io/checkpoint/tensor.hpp"

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/join.hpp"

namespace mylos {

std::string TensorInfo::shape_text() const {
  return fmt::format("({})", join(shape, ", "));
}

void check_parts(const TensorInfo& tensor, const std::vector<TensorPart>& parts) {
  constexpr std::size_t max_rank = 8;
  require(!tensor.shape.empty() && tensor.shape.size() <= max_rank && std::ranges::min(tensor.shape) > 0,
          "a tensor of a checkpoint has 1 to 8 dimensions, none empty");
  for (const TensorPart& part : parts) {
    require(
        part.box.fits(tensor.shape) && part.stride.size() == tensor.shape.size() && part.stride.back() == 1,
        "parts inside their tensor");
  }
}

std::vector<TensorPart> cut(const TensorPart& part, std::int64_t most_bytes) {
  std::vector<TensorPart> parts;
  if (part.box.size() == 0) return parts;
  const std::int64_t row = part.box.size() / part.box.count[0];
  const std::int64_t most_rows =
      std::max<std::int64_t>(1, most_bytes / (row * static_cast<std::int64_t>(sizeof(float))));
  for (std::int64_t first = 0; first < part.box.count[0]; first += most_rows) {
    TensorPart rows = part;
    rows.box.start[0] += first;
    rows.box.count[0] = std::min(most_rows, part.box.count[0] - first);
    if (part.source) {
      rows.first += first * part.stride[0];
    } else {
      rows.data += first * part.stride[0];
    }
    parts.push_back(std::move(rows));
  }
  return parts;
}

}  // namespace mylos
