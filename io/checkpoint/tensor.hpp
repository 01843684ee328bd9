// SPDX-License-Identifier: BSD-3-Clause
// Tensors of a checkpoint, and the boxes of them that a rank holds in memory.
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
  std::string name;                 ///< as in Hugging Face; with a group before it for an optimizer's state
  std::vector<std::int64_t> shape;  ///< row-major
  std::int64_t size() const { return product(shape); }
  std::string shape_text() const;  ///< "(768, 3072)"
};

/// Fills `values` with the elements that start at `first`, from memory that is not fp32 or not on the host.
using ElementSource = std::function<void(std::int64_t first, std::span<float> values)>;

/// A box of a global tensor, and this rank's fp32 host memory for it: the first element lies at `data`, and
/// neighbours along dimension d lie stride[d] elements apart. The last stride is 1; each of the others is a
/// multiple of the next.
struct TensorPart {
  Box box;
  float* data = nullptr;
  std::vector<std::int64_t> stride;
  ElementSource source = nullptr;  ///< for writing: provides the elements instead of `data`
  std::int64_t first = 0;          ///< index in the source of the first element of the box
};

/// Throws ExitCode::internal unless the tensor has 1 to 8 dimensions, none of extent 0, and the parts lie
/// inside it, with one stride per dimension, of which the last is 1.
void check_parts(const TensorInfo& tensor, const std::vector<TensorPart>& parts);

/// Cuts the part along its first dimension into parts of at most `most_bytes`, or of one row if that is more.
std::vector<TensorPart> cut(const TensorPart& part, std::int64_t most_bytes);

}  // namespace mylos
