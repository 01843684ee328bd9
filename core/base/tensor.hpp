// SPDX-License-Identifier: BSD-3-Clause
// TensorRef: a view of memory that crosses plugin boundaries as plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"

namespace mylos {

/// A non-owning, strided view. Row-major unless strides say otherwise; strides count elements.
/// `version` changes whenever the weights in the viewed memory change, so that a backend that keeps a packed
/// copy knows when that copy is stale. 0 means that backends keep no copy, as for tensors other than weights.
struct TensorRef {
  static constexpr int max_rank = 5;

  void* data = nullptr;
  DType dtype = DType::fp32;
  std::uint8_t rank = 0;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> stride{};
  std::uint64_t version = 0;

  TensorRef() = default;

  /// A contiguous view of `data` with the given shape.
  TensorRef(void* data_, DType dtype_, std::initializer_list<std::int64_t> shape_, std::uint64_t version_ = 0)
      : data(data_), dtype(dtype_), rank(static_cast<std::uint8_t>(shape_.size())), version(version_) {
    require(shape_.size() <= max_rank, "a tensor has at most five dimensions");
    int i = 0;
    for (const std::int64_t extent : shape_) shape[i++] = extent;
    std::int64_t step = 1;
    for (i = rank - 1; i >= 0; --i) {
      stride[i] = step;
      step *= shape[i];
    }
  }

  explicit operator bool() const { return data != nullptr; }

  std::int64_t size() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }

  bool contiguous() const {
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && stride[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }

  template <class T>
  T* as() const {
    require(dtype == dtype_of<T>(), "tensor element type");
    return static_cast<T*>(data);
  }

  /// Returns elements [first, first + count) of a contiguous tensor as a one-dimensional view.
  TensorRef flat(std::int64_t first, std::int64_t count) const {
    require(contiguous() && first >= 0 && count >= 0 && first + count <= size(), "flat range inside tensor");
    return {static_cast<std::byte*>(data) + static_cast<std::size_t>(first) * size_of(dtype),
            dtype,
            {count},
            version};
  }
  TensorRef flat() const { return flat(0, size()); }

  /// Returns a view of a contiguous tensor with another shape of the same size.
  TensorRef reshaped(std::initializer_list<std::int64_t> new_shape) const {
    TensorRef view(data, dtype, new_shape, version);
    require(contiguous() && view.size() == size(), "reshape keeps the size");
    return view;
  }

  /// Returns a view of indices [first, first + count) of the leading dimension.
  TensorRef rows(std::int64_t first, std::int64_t count) const {
    require(rank >= 1 && first >= 0 && count >= 0 && first + count <= shape[0], "rows inside tensor");
    TensorRef view = *this;
    view.data = static_cast<std::byte*>(data) + static_cast<std::size_t>(first * stride[0]) * size_of(dtype);
    view.shape[0] = count;
    return view;
  }
};

}  // namespace mylos
