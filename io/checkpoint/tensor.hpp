// SPDX-License-Identifier: BSD-3-Clause
// Tensors of a checkpoint, and the boxes of them that a rank has in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/layout/box.hpp"

namespace mylos {

/// A tensor of a checkpoint: its name and global, unpadded shape. Always fp32 in the file.
struct TensorInfo {
  std::string name;                 ///< Hugging Face's, e.g. "h.0.attn.c_attn.weight"
  std::vector<std::int64_t> shape;  ///< row-major
  std::int64_t size() const { return product(shape); }
  std::string shape_text() const;  ///< "(768, 3072)"
};

/// Copies elements from `first` on out of memory that is not fp32, or not the host's.
using ElementSource = std::function<void(std::int64_t first, std::span<float> values)>;

/// A box of a global tensor, and this rank's fp32 host memory for it: the first element lies at `data`,
/// neighbours along dimension d lie stride[d] elements apart. The last stride is 1, each other a multiple of
/// the next.
struct TensorPart {
  Box box;
  float* data = nullptr;
  std::vector<std::int64_t> stride;
  ElementSource source = nullptr;  ///< for writing: has the elements instead of `data`
  std::int64_t first = 0;          ///< element of the source that takes the place of data[0]
};

/// Elements [begin, begin + count) of the flattened tensor, which lie one behind the other from `data` on.
std::vector<TensorPart> parts_of_range(const TensorInfo& tensor, std::int64_t begin, std::int64_t count,
                                       float* data);

/// Throws ExitCode::internal unless the parts lie in a tensor of 1 to 8 dimensions, none of them empty.
void check_parts(const TensorInfo& tensor, const std::vector<TensorPart>& parts);

/// The part along its first dimension in parts of at most `most_bytes`, or a row.
std::vector<TensorPart> cut(const TensorPart& part, std::int64_t most_bytes);

}  // namespace mylos
