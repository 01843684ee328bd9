// SPDX-License-Identifier: BSD-3-Clause
// The HDF5 files of checkpoints of version 1: chunked datasets with Fletcher32, written until November 2026.
#pragma once

#include <filesystem>
#include <vector>

#include "io/checkpoint/tensor.hpp"
#include "io/hdf5_handle.hpp"

namespace mylos {

/// An open file. Each process opens the file itself and uses it on the I/O thread only. The constructor and
/// `read` throw ExitCode::bad_data if the file is damaged; the message names the file and, if known, the
/// dataset.
class ChunkedTensors {
 public:
  /// Checks everything that reading relies on: type, shape, chunks, filter, and that no chunk is missing.
  explicit ChunkedTensors(std::filesystem::path path);

  /// By name.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// `tensor` must be one of `tensors()`.
  void read(const TensorInfo& tensor, const std::vector<TensorPart>& parts) const;

 private:
  template <class Result>
  Result check(Result result, const std::string& what) const {
    return h5_check(result, ExitCode::bad_data, fmt::format("cannot read {}: {}", path_.string(), what));
  }

  H5Dataset open(const std::string& name) const;
  /// Collects the datasets of the root (depth 0) or of a group in it. Refuses all links except hard links,
  /// because other links may lead out of the file, and everything deeper, because hard links can form cycles.
  void scan(const std::string& prefix, int depth);
  /// Makes the constructor's checks of one dataset.
  TensorInfo describe(hid_t dataset, const std::string& name) const;
  void check_size(const std::vector<hsize_t>& extents, std::int64_t limit, const std::string& name) const;
  [[noreturn]] void fail_at(const std::string& name, const std::string& problem) const;

  std::filesystem::path path_;
  std::int64_t file_bytes_ = 0;
  H5File file_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace mylos
