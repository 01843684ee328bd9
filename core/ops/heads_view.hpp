// SPDX-License-Identifier: BSD-3-Clause
// HeadsView and AttentionShape: attention's tensors and sizes, as kernels use them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/base/dtype.hpp"
#include "core/base/tensor.hpp"
#include "core/ops/operations.hpp"

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

/// The sizes of a call, and what its kernels need besides tensors and dropout.
struct AttentionShape {
  std::int64_t batch, heads, queries, keys;
  std::int64_t offset;  // position of the first query
  int dimension;
  float scale;
  AttentionPlace place;

  /// Requires that the tensors have the shapes of one call.
  explicit AttentionShape(const AttentionForward& op)
      : batch(op.query.shape[0]),
        heads(op.query.shape[2]),
        queries(op.query.shape[1]),
        keys(op.key.shape[1]),
        offset(op.query_offset),
        dimension(static_cast<int>(op.query.shape[3])),
        scale(op.scale),
        place(op.place) {
    require(op.key.shape == op.value.shape && op.output.shape == op.query.shape && op.key.shape[0] == batch &&
                op.key.shape[2] == heads && op.key.shape[3] == dimension,
            "attention's shapes");
    require(op.lse.contiguous() && op.lse.size() == batch * heads * queries, "one lse for each query");
  }
  explicit AttentionShape(const AttentionBackward& op) : AttentionShape(op.forward) {
    const AttentionForward& forward = op.forward;
    require(op.output_grad.shape == forward.query.shape && op.query_grad.shape == forward.query.shape &&
                op.key_grad.shape == forward.key.shape && op.value_grad.shape == forward.key.shape,
            "attention's gradients have the shapes of its tensors");
    require(op.delta.contiguous() && op.delta.size() == forward.lse.size(), "one delta for each query");
  }
};

}  // namespace mylos
