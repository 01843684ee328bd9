// SPDX-License-Identifier: BSD-3-Clause
// MpiRuntime: MPI and the watchdog, from start to end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/deck/run_config.hpp"
#include "app/launch/beacon.hpp"
#include "app/launch/last_resort.hpp"
#include "core/base/thread_limits.hpp"
#include "parallel/health/flight_recorder.hpp"
#include "parallel/health/watchdog.hpp"

namespace mylos {

/// Initialises MPI with MPI_THREAD_MULTIPLE and finalises it. Throws ExitCode::usage if the library offers
/// less, the errors of `check_launch`, and those of `check_variables` and `check_limits` before that. While
/// this object exists, no rank waits forever: the watchdog ends the job if a rank does not start, stops or
/// stalls. Ranks to which the launcher gave the same processors divide these (`even_share`), unless there are
/// fewer processors than ranks, a binding variable of OpenMP or libgomp is set, or binding fails.
class MpiRuntime {
 public:
  static constexpr std::chrono::milliseconds default_start_timeout{60000};

  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns the limits on the threads of this rank (`own_thread_limits`).
  const std::vector<ThreadLimit>& thread_limits() const { return thread_limits_; }

  /// Returns the names of the hosts, one per node, in the order of their ranks.
  const std::vector<std::string>& hosts() const { return hosts_; }

  JobSize job() const { return {size_, ranks_per_node_}; }

  Watchdog& watchdog() const { return *watchdog_; }
  FlightRecorder& recorder() const { return *recorder_; }
  /// Sets the watchdog's limits and the interval of the heartbeat.
  void set_limits(const WatchdogLimits& limits) const;

  /// Returns rank 0's text on every rank. Collective.
  std::string broadcast(std::string text) const;

 private:
  friend int with_mpi(std::chrono::milliseconds start_timeout,
                      const std::function<int(const MpiRuntime&)>& work);

  explicit MpiRuntime(std::chrono::milliseconds start_timeout);
  void share_cores();

  std::optional<int> code_;  // what the command returned
  int rank_ = 0;
  int size_ = 1;
  int ranks_per_node_ = 1;  // as in JobSize
  std::vector<ThreadLimit> thread_limits_;
  std::vector<std::string> hosts_;
  std::unique_ptr<Watchdog> watchdog_;
  std::optional<FailuresEndJob> failures_;
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<Beacon> beacon_;
};

/// Starts MPI as MpiRuntime does, runs `work` and ends MPI. Returns the exit code of `work`, which all ranks
/// must agree on; `work` has written all of its output. Once it has returned on all ranks, the process exits
/// with this code even if MPI_Finalize hangs (`exit_unless_ended_within`).
int with_mpi(std::chrono::milliseconds start_timeout, const std::function<int(const MpiRuntime&)>& work);

}  // namespace mylos
