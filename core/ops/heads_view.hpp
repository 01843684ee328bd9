// SPDX-License-Identifier: BSD-3-Clause
// HeadsView: attention's tensors, as kernels index them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/base/dtype.hpp"
#include "core/base/tensor.hpp"

namespace mylos {

/// (B, T, H, D) with unit stride in D; strides in elements.
template <class T>
struct HeadsView {
  T* data;
  std::int64_t batch;
  std::int64_t position;
  std::int64_t head;

  explicit HeadsView(const TensorRef& tensor)
      : data(tensor.as<std::remove_const_t<T>>()),
        batch(tensor.stride[0]),
        position(tensor.stride[1]),
        head(tensor.stride[2]) {
    require(tensor.rank == 4 && (tensor.stride[3] == 1 || tensor.shape[3] == 1),
            "(B, T, H, D) with unit stride in D");
  }
  MYLOS_HOST_DEVICE T* row(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return data + b * batch + t * position + h * head;
  }
};

}  // namespace mylos
