// SPDX-License-Identifier: BSD-3-Clause
// StoredWeights: boxes of tensors that lie in files as plain elements.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>

#include "core/base/dtype.hpp"
#include "io/checkpoint/tensor.hpp"
#include "io/file_util.hpp"

namespace mylos {

/// A vector or matrix in a file: little endian, row-major, without gaps.
struct StoredTensor {
  std::string name;         ///< for messages
  std::size_t file = 0;     ///< number of the file
  std::int64_t offset = 0;  ///< of the first byte in the file
  DType dtype{};            ///< fp32, bf16 or fp16
  std::int64_t rows = 1;    ///< 1 for a vector
  std::int64_t columns = 0;
  bool transposed = false;  ///< the rows of the file are the columns of the tensor

  std::int64_t bytes() const { return rows * columns * static_cast<std::int64_t>(size_of(dtype)); }
};

/// Files of weights. Reads bf16 and fp16 as fp32, exactly, with memory for a few rows.
class StoredWeights {
 public:
  /// Adds an open file and returns its number.
  std::size_t add(FileDescriptor open, std::filesystem::path file);
  const std::filesystem::path& file(std::size_t number) const { return files_[number].path; }

  /// Reads a part of `stored`, which holds a tensor of one or two dimensions. Requests only the bytes of the
  /// box. Throws ExitCode::bad_data, with file and place, for a value that is not finite, ExitCode::io if the
  /// file cannot be read. Threads may call this at the same time.
  void read(const StoredTensor& stored, const TensorPart& part) const;
  /// The bytes that `read` has requested so far.
  std::int64_t bytes_requested() const { return bytes_requested_; }

 private:
  struct File {
    FileDescriptor open;
    std::filesystem::path path;
  };

  std::deque<File> files_;
  mutable std::atomic<std::int64_t> bytes_requested_ = 0;
};

}  // namespace mylos
