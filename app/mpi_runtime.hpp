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
  /// Ranks of this node that may run on the same cores as this one, itself included: all where the launcher
  /// binds none.
  int ranks_sharing_cores() const { return ranks_sharing_cores_; }

  /// Rank 0's text on every rank.
  std::string broadcast(std::string text) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  int ranks_sharing_cores_ = 1;
};

}  // namespace mylos
