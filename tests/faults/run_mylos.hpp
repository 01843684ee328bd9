// SPDX-License-Identifier: BSD-3-Clause
// Starts the mylos executable on several ranks, as a user does, and finds the processes of its ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace mylos::test {

/// How a job ended.
struct Outcome {
  int exit_code = -1;  ///< of the launcher; 1000 + signal if a signal ended it
  std::string output;  ///< standard output and error of all ranks
};

struct JobOptions {
  int ranks = 2;                              ///< 0: one process without a launcher
  std::vector<std::string> environment = {};  ///< "NAME=value", in addition to the test's own
  std::vector<std::string> wrapper = {};      ///< a command to which mylos and its arguments are passed
};

/// A running `mpiexec -n RANKS mylos ARGUMENTS` on this node, also within a job of Slurm. If MYLOS_LAUNCH
/// names a launch script of the build, this starts the ranks, perhaps on other nodes, where their processes
/// are not found.
class Job {
 public:
  explicit Job(const std::vector<std::string>& arguments, const JobOptions& options = {});
  /// Kills the remaining processes.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  pid_t launcher() const { return launcher_; }
  /// The process of a rank, if it runs.
  std::optional<pid_t> find_rank(int rank) const;
  /// The process of a rank; waits until it runs. Throws if the job ends first, or after `hang_limit`.
  pid_t rank(int rank) const;
  /// The mylos processes of the job.
  std::vector<pid_t> processes() const;
  std::string output() const;
  bool running() const;
  /// Waits until `condition` is true. Throws if the job ends first, or after `hang_limit`.
  void wait_until(const std::function<bool()>& condition) const;
  /// Waits until the job ends by itself. Throws after `hang_limit`; the destructor kills the job.
  Outcome wait();

 private:
  std::string id_;  // in the environment of its processes
  pid_t launcher_ = 0;
  int output_ = -1;
};

/// Whether `process` has a handler for `signal`.
bool handles(pid_t process, int signal);

Outcome run_mylos(const std::vector<std::string>& arguments, const JobOptions& options = {});

}  // namespace mylos::test
