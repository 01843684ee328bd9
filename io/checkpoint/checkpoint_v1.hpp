// SPDX-License-Identifier: BSD-3-Clause
// The HDF5 files of checkpoints of version 1: chunked datasets with Fletcher32, written until November 2026.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "io/checkpoint/tensor.hpp"

namespace mylos {

/// An open file, for one process, on the I/O thread. If the file is damaged, throws ExitCode::bad_data with
/// the dataset's name.
class ChunkedTensors {
 public:
  /// Checks everything that reading relies on: type, shape, chunks, filter, and that no chunk is missing.
  explicit ChunkedTensors(std::filesystem::path path);
  ~ChunkedTensors();
  ChunkedTensors(ChunkedTensors&&) noexcept;
  ChunkedTensors& operator=(ChunkedTensors&&) = delete;

  /// In file order.
  const std::vector<TensorInfo>& tensors() const;
  /// `tensor` must be one of `tensors()`.
  void read(const TensorInfo& tensor, const std::vector<TensorPart>& parts) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mylos
