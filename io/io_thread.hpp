// SPDX-License-Identifier: BSD-3-Clause
// IoThread: a thread for file I/O, with its own duplicate of the world communicator if MPI is initialised.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include <mpi.h>

namespace mylos {

/// Runs submitted jobs in order. HDF5 is not thread-safe in every build, so a process uses HDF5 files on one
/// such thread only.
class IoThread {
 public:
  /// If MPI is initialised, duplicates MPI_COMM_WORLD, collectively; throws ExitCode::usage if MPI lacks
  /// MPI_THREAD_MULTIPLE. If MPI is not initialised, works for one process, with MPI_COMM_NULL.
  IoThread();
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  /// Queues `job`; the future carries its exception.
  std::future<void> submit(std::function<void()> job);
  /// Runs `job` on the thread and waits; rethrows its exception. If called on the thread itself, runs `job`
  /// directly.
  void run(std::function<void()> job);

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The number of nodes that the ranks are on.
  int nodes() const { return nodes_; }
  /// This rank's share of the node's processors (`own_thread_limits`), for work during which the rank does
  /// nothing else.
  int threads() const { return threads_; }

 private:
  void loop(const std::stop_token& stop);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int nodes_ = 1;
  int threads_ = 1;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<std::packaged_task<void()>> queue_;
  std::jthread thread_;
};

/// Returns the version of the HDF5 library in use: "1.10.8".
std::string hdf5_version();

}  // namespace mylos
