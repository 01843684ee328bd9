// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/block.hpp"

namespace mylos {

WeightSlot::WeightSlot(const Parameter& parameter)
    : offset_(parameter.offset),
      size_(parameter.padded_size()),
      rows_(parameter.padded_rows),
      columns_(parameter.shape.size() == 2 ? parameter.local_shape()[1] : 0) {}

TensorRef WeightSlot::in(const TensorRef& flat) const {
  const TensorRef range = flat.flat(offset_, size_);
  return columns_ == 0 ? range : range.reshaped({rows_, columns_});
}

}  // namespace mylos
