// SPDX-License-Identifier: BSD-3-Clause
// Dense tensors in a file. Any number of processes write, read and digest their boxes concurrently, without
// HDF5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/base/digest.hpp"
#include "io/checkpoint/tensor.hpp"
#include "io/file_util.hpp"

namespace mylos {

/// A dense row-major tensor in a file.
struct PlacedTensor {
  TensorInfo info;
  std::int64_t offset = 0;  ///< of its first byte in the file
  std::int64_t end() const { return offset + info.size() * static_cast<std::int64_t>(sizeof(float)); }
};

/// An open file of tensors. Throws ExitCode::io if opening, reading, writing or syncing it fails.
class TensorFile {
 public:
  /// `flags` as for open(2).
  TensorFile(std::filesystem::path path, int flags);

  /// Writes a part and returns the digest of its elements, row-major. Throws ExitCode::numerical if an
  /// element is not finite.
  Digest write(const PlacedTensor& tensor, const TensorPart& part) const;
  void read(const PlacedTensor& tensor, const TensorPart& part) const;
  /// The digest of the elements of a box, row-major, as they are in the file.
  Digest digest_of(const PlacedTensor& tensor, const Box& box) const;
  /// The digest of the bytes [begin, end).
  Digest digest_of(std::int64_t begin, std::int64_t end) const;

  /// Returns when everything that this node has written to the file is on disk.
  void sync() const;
  /// Asks the kernel to drop the file's pages from this node's page cache. If the file system allows it,
  /// later writes and digests of boxes bypass that cache, except for short runs of bytes, partial pages at
  /// the ends of a written run, and tensors at offsets that are not multiples of 4.
  void bypass_cache();
  /// Tells the kernel that the file will be read in order.
  void read_ahead() const;

 private:
  /// For direct I/O, `to` and `from` must have the same offset within a page as `offset`.
  void read_at(std::int64_t offset, std::size_t bytes, std::byte* to) const;
  void write_at(std::int64_t offset, std::size_t bytes, const std::byte* from) const;

  std::filesystem::path path_;
  int access_;
  FileDescriptor file_;
  FileDescriptor direct_;  // the same file with O_DIRECT; empty if that is not requested or not possible
};

/// Creates an HDF5 file in which the tensors are contiguous fp32 datasets ("group/name" makes a group) with
/// allocated but unwritten bytes. Tensors of at least `alignment` bytes begin at multiples of `alignment`.
/// Reserves disk space if the file system can. For one process, on the thread that makes its HDF5 calls.
std::vector<PlacedTensor> lay_out_tensors(const std::filesystem::path& path,
                                          const std::vector<TensorInfo>& tensors, std::int64_t alignment);

}  // namespace mylos
