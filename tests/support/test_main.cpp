// SPDX-License-Identifier: BSD-3-Clause
// The main function of the test programs, on any number of ranks.
//
// MPI is always initialised: communicators need it even on one rank. A test that takes longer than
// MYLOS_TEST_TIMEOUT seconds, by default 300, is named and ends the job. Rank 0 prints the failures of all
// ranks' tests, and every rank returns the same exit code.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <sched.h>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

namespace {

using Clock = std::chrono::steady_clock;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// Polls and yields: ranks that spin would take the cores from the rank that they wait for.
void finish(MPI_Request request) {
  int done = 0;
  while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0) sched_yield();
}

int maximum_over_ranks(int value) {
  int maximum = value;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(&value, &maximum, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
  finish(request);
  return maximum;
}

/// Names a test that does not end, and ends the job.
class HangWatchdog {
 public:
  HangWatchdog() : thread_([this](const std::stop_token& stop) { run(stop); }) {}
  ~HangWatchdog() {
    thread_.request_stop();
    wake_.notify_all();
  }
  HangWatchdog(const HangWatchdog&) = delete;
  HangWatchdog& operator=(const HangWatchdog&) = delete;

  void test_started(const std::string& name) {
    const std::lock_guard lock(mutex_);
    name_ = name;
    failures_.clear();
    in_test_ = true;
    deadline_ = Clock::now() + limit();
  }
  /// The rank has finished the test and waits for the others. Its deadline moves, so that hanging ranks
  /// report first.
  void test_finished_here(const std::string& failures) {
    const std::lock_guard lock(mutex_);
    failures_ = failures;
    in_test_ = false;
    deadline_ += std::chrono::seconds(2);
  }
  void test_ended() {
    const std::lock_guard lock(mutex_);
    name_.clear();
  }

 private:
  static std::chrono::seconds limit() {
    const char* text = std::getenv("MYLOS_TEST_TIMEOUT");
    return std::chrono::seconds(text != nullptr ? std::atoi(text) : 300);
  }

  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (!name_.empty() && Clock::now() > deadline_) give_up();
      wake_.wait_for(lock, stop, std::chrono::milliseconds(100), [] { return false; });
    }
  }

  [[noreturn]] void give_up() const {
    std::fprintf(stderr, "[  HANG    ] rank %d: %s %s\n%s", world_rank(), name_.c_str(),
                 in_test_ ? "does not end" : "ended here, but not on every rank", failures_.c_str());
    std::fflush(stderr);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // other ranks that hang report too
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    std::_Exit(EXIT_FAILURE);
  }

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::string name_;
  std::string failures_;
  bool in_test_ = false;
  Clock::time_point deadline_;
  std::jthread thread_;
};

/// Turns the failures of the other ranks into failures of rank 0.
class RankListener final : public testing::EmptyTestEventListener {
 public:
  explicit RankListener(HangWatchdog& watchdog) : watchdog_(watchdog) {}

  void OnTestStart(const testing::TestInfo& test) override {
    failures_.clear();
    watchdog_.test_started(std::string(test.test_suite_name()) + "." + test.name());
  }

  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed()) return;
    failures_ += std::string(part.file_name() != nullptr ? part.file_name() : "unknown file") + ":" +
                 std::to_string(part.line_number()) + ": " + part.message() + "\n";
  }

  void OnTestEnd(const testing::TestInfo& /*test*/) override {
    watchdog_.test_finished_here(failures_);
    const int bytes = maximum_over_ranks(static_cast<int>(failures_.size()));
    if (bytes > 0) gather_failures(static_cast<std::size_t>(bytes));
    watchdog_.test_ended();
  }

 private:
  void gather_failures(std::size_t bytes) {
    std::string own = failures_;
    own.resize(bytes, '\0');
    std::vector<char> all(bytes * static_cast<std::size_t>(world_size()));
    const int count = static_cast<int>(bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Igather(own.data(), count, MPI_CHAR, all.data(), count, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
    finish(request);
    if (world_rank() != 0) return;
    for (int rank = 1; rank < world_size(); ++rank) {
      std::string text(&all[static_cast<std::size_t>(rank) * bytes], bytes);
      text.resize(text.find_last_not_of('\0') + 1);
      if (!text.empty()) ADD_FAILURE() << "on rank " << rank << ":\n" << text;
    }
  }

  HangWatchdog& watchdog_;
  std::string failures_;
};

}  // namespace

int main(int argc, char** argv) {
  int threads = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world_rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
  }
  int result = EXIT_FAILURE;
  {
    HangWatchdog watchdog;
    listeners.Append(new RankListener(watchdog));  // owned by GoogleTest
    result = maximum_over_ranks(RUN_ALL_TESTS());
  }
  MPI_Finalize();
  return result;
}
