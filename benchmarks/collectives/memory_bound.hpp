// SPDX-License-Identifier: BSD-3-Clause
// MemoryBound: the least memory traffic of a collective over shared windows, as bare loops without
// synchronisation.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <mpi.h>

namespace mylos {

/// One fp32 buffer per rank of a node; every rank can access all of them.
class MemoryBound {
 public:
  /// Collective over `node`, whose ranks share memory.
  MemoryBound(MPI_Comm node, std::size_t bytes);
  ~MemoryBound();
  MemoryBound(const MemoryBound&) = delete;
  MemoryBound& operator=(const MemoryBound&) = delete;

  /// All-reduce of `bytes`: this rank's slice of every buffer is read once, and the sum is written once to
  /// each.
  void all_reduce(std::size_t bytes, bool streaming);
  /// Reduce-scatter of `bytes` in all: this rank's slice of every buffer is read once, and the sum is written
  /// to this rank's buffer.
  void reduce_scatter(std::size_t bytes, bool streaming);
  /// All-gather of `bytes` in all, in place: every other rank's slice is read once and written to this rank's
  /// buffer.
  void all_gather(std::size_t bytes, bool streaming);

 private:
  /// Elements [begin, end) that a rank is responsible for.
  struct Slice {
    std::size_t begin;
    std::size_t end;
  };
  Slice slice(std::size_t bytes, int rank) const;

  MPI_Win window_ = MPI_WIN_NULL;
  int rank_ = 0;
  std::vector<float*> buffers_;  // of every rank
};

}  // namespace mylos
