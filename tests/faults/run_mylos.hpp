// SPDX-License-Identifier: BSD-3-Clause
// Starts the mylos executable under mpiexec, as a user does, and finds the processes of its ranks.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace mylos::test {

/// How a job ended.
struct Outcome {
  int exit_code = -1;  ///< of mpiexec; 1000 + signal where one ended it
  std::string output;  ///< standard output and error of all ranks
  double seconds = 0.0;
};

struct JobOptions {
  int ranks = 2;
  std::vector<std::string> environment = {};  ///< "NAME=value", in addition to the test's own
  bool as_nobody = false;                     ///< as an ordinary user, where the test runs as root
};

/// A running `mpiexec -n RANKS mylos ARGUMENTS`.
class Job {
 public:
  explicit Job(const std::vector<std::string>& arguments, const JobOptions& options = {});
  /// Kills what is left.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  pid_t launcher() const { return launcher_; }
  /// The process of a rank; waits until it runs. 0 where the job ends before.
  pid_t rank(int rank) const;
  /// The mylos processes that are alive.
  std::vector<pid_t> processes() const;
  std::string output() const;
  bool running() const;
  /// Waits until the job ends by itself; kills one that takes longer than `most_seconds`.
  Outcome wait(double most_seconds = 60.0);

 private:
  std::string id_;  // in the environment of its processes
  std::chrono::steady_clock::time_point start_;
  pid_t launcher_ = 0;
  int output_ = -1;
};

Outcome run_mylos(const std::vector<std::string>& arguments, const JobOptions& options = {});

/// Polls `condition`; false where it does not become true in time.
bool wait_until(const std::function<bool()>& condition, double most_seconds = 20.0);

}  // namespace mylos::test
