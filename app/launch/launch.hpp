// SPDX-License-Identifier: BSD-3-Clause
// Launch: what the ranks of a job do together before and around a command's own work.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>

#include "app/deck/command_line.hpp"
#include "app/launch/mpi_runtime.hpp"
#include "app/launch/setup.hpp"

namespace mylos {

/// Ends a command on all ranks, which have agreed on the exit code; rank 0 has printed why.
struct AgreedEnd {
  int code = 0;
};

/// A job of a command. Until its backends exist, an error on one rank is printed once, and all ranks return
/// its code: these functions throw AgreedEnd. All of them are collective.
class Launch {
 public:
  /// Called with the code and the message of an error that ends the job.
  using Record = std::function<void(ExitCode, const std::string&)>;

  explicit Launch(const MpiRuntime& mpi) : mpi_(mpi) {}

  const MpiRuntime& mpi() const { return mpi_; }
  bool is_first() const { return mpi_.rank() == 0; }
  /// Prints "warning: TEXT" on rank 0.
  void warn(const std::string& text) const;

  /// Runs `work` on every rank.
  void agree(const std::function<void()>& work) const;
  /// Has rank 0 read a text, once, and returns it on all ranks. Signals end a silent wait with
  /// ExitCode::preempted.
  std::string share(const std::function<std::string()>& read) const;
  /// Ends with ExitCode::usage if `identity`, lines that end with '\n', is not the same on all ranks; rank 0
  /// prints the first line that differs from its own.
  void check_same(const std::string& identity) const;
  /// Takes the limits of `setup` for the watchdog. If these ranks cannot use the chosen communication backend
  /// together, warns and chooses MPI instead, or, if the deck names that backend, ends. After
  /// `Setup::choose`.
  void adopt(Setup& setup) const;
  /// Runs what needs backends and returns its exit code. An error on one rank ends the job after `record`,
  /// which may write status.json: on all ranks with the error's code, or by returning the code if there is
  /// one rank, since MPICH's launcher may lose it in an abort. Higher ranks wait a little, so that the lowest
  /// failing rank reports.
  int run(const std::function<int()>& work, const Record& record = {}) const;

 private:
  int end(const std::exception& error, const Record& record) const;

  const MpiRuntime& mpi_;
};

/// Runs `work` on the ranks of this job, as `with_mpi` does. Returns its exit code or that of an AgreedEnd.
int with_launch(std::chrono::milliseconds start_timeout, const std::function<int(const Launch&)>& work);

}  // namespace mylos
