// SPDX-License-Identifier: BSD-3-Clause
// ReferenceFile: reads gpt2_reference.h5, which make_reference.py wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace mylos {

/// A reference file, opened for reading by this process alone; needs no MPI. Every function throws
/// ExitCode::bad_data with the names of the file and of the item that is missing or unreadable.
class ReferenceFile {
 public:
  explicit ReferenceFile(const std::filesystem::path& path);
  ~ReferenceFile();
  ReferenceFile(ReferenceFile&&) noexcept;
  ReferenceFile& operator=(ReferenceFile&&) noexcept;

  /// The elements of a dataset, row-major, converted to T: float, double or std::int32_t.
  template <class T = float>
  std::vector<T> read(const std::string& dataset) const;
  /// Empty for a scalar.
  std::vector<std::int64_t> shape(const std::string& dataset) const;
  /// Names in a group, in alphabetical order.
  std::vector<std::string> list(const std::string& group) const;
  /// A number of the configuration, e.g. "layers" or "lr".
  double attribute(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mylos
