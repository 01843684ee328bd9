// SPDX-License-Identifier: BSD-3-Clause
// MpiRuntime: MPI from start to end, for the commands that compute.
#pragma once

#include <string>

#include "app/run_config.hpp"

namespace mylos {

/// Initialises MPI with MPI_THREAD_MULTIPLE; throws ExitCode::usage where the library offers less. Finalises
/// it. Ranks that share cores because the launcher bound none divide them evenly, unless there are too few or
/// OpenMP's variables bind threads.
class MpiRuntime {
 public:
  MpiRuntime();
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Ranks of this node that may run on the same cores as this one, itself included: 1 where
  /// the launcher or this class bound them.
  int ranks_sharing_cores() const { return ranks_sharing_cores_; }

  JobSize job() const { return {size_, ranks_per_node_}; }

  /// Rank 0's text on every rank.
  std::string broadcast(std::string text) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  int ranks_per_node_ = 1;  // as JobSize
  int ranks_sharing_cores_ = 1;
};

}  // namespace mylos
