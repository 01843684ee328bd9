// SPDX-License-Identifier: BSD-3-Clause
// IoThread: the one thread of a process that calls HDF5, on its own duplicate of the world communicator.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include <mpi.h>

namespace mylos {

/// Debian's HDF5 is not thread safe: every HDF5 call of a process is made here, in the order
/// submitted.
class IoThread {
 public:
  /// With MPI initialised (THREAD_MULTIPLE) duplicates MPI_COMM_WORLD, collectively; otherwise works for one
  /// process with MPI_COMM_NULL.
  IoThread();
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  /// Queues `job`; the future carries its exception.
  std::future<void> submit(std::function<void()> job);
  /// Runs `job` on the thread and waits; rethrows its exception.
  void run(std::function<void()> job) { submit(std::move(job)).get(); }

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// That the ranks are on.
  int nodes() const { return nodes_; }
  /// This rank's share of the node's processors, for work that nothing else waits beside.
  int threads() const { return threads_; }

 private:
  void loop();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int nodes_ = 1;
  int threads_ = 1;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace mylos
