// SPDX-License-Identifier: BSD-3-Clause
#include "io/io_thread.hpp"

#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/thread_limits.hpp"
#include "io/hdf5_handle.hpp"
#include "io/node_sharing.hpp"

namespace mylos {

IoThread::IoThread() {
  Sharing sharing;
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) {
    int level = 0;
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE) fail(ExitCode::usage, "this MPI does not offer MPI_THREAD_MULTIPLE");
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    MPI_Comm node = MPI_COMM_NULL;
    MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    int rank_on_node = 0;
    MPI_Comm_rank(node, &rank_on_node);
    sharing = sharing_on(node);
    MPI_Comm_free(&node);
    nodes_ = rank_on_node == 0 ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &nodes_, 1, MPI_INT, MPI_SUM, comm_);
  }
  threads_ = static_cast<int>(smallest(own_thread_limits(sharing)).threads);
  // Without this, HDF5 would flush at exit the files that an error left open.
  static std::once_flag once;
  std::call_once(once, [] { H5dont_atexit(); });
  thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
}

IoThread::~IoThread() {
  thread_.request_stop();  // after the jobs that are queued
  thread_.join();
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (comm_ != MPI_COMM_NULL && finalised == 0) MPI_Comm_free(&comm_);
}

std::future<void> IoThread::submit(std::function<void()> job) {
  std::packaged_task<void()> task(std::move(job));
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
  return done;
}

void IoThread::run(std::function<void()> job) {
  if (std::this_thread::get_id() == thread_.get_id()) return job();
  submit(std::move(job)).get();
}

void IoThread::loop(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [this] { return !queue_.empty(); })) {
    std::packaged_task<void()> task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace mylos
