// SPDX-License-Identifier: BSD-3-Clause
// MpiRuntime: MPI from start to end, for the commands that compute.
#pragma once

#include <string>

namespace mylos {

/// Initialises MPI with MPI_THREAD_MULTIPLE; throws ExitCode::usage where the library offers less. Finalises
/// it.
class MpiRuntime {
 public:
  MpiRuntime();
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }  ///< ranks on this node

  /// Rank 0's text on every rank.
  std::string broadcast(std::string text) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  int local_size_ = 1;
};

}  // namespace mylos
