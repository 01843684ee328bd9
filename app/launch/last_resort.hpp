// SPDX-License-Identifier: BSD-3-Clause
// What happens if a library ends the process: a line and an exit code of mylos.
#pragma once

namespace mylos {

class Watchdog;

/// From now on, an exception that nothing catches, abort(), exit() and a signal such as SIGSEGV, whoever
/// causes them, end the process with one line on stderr and ExitCode::internal; `exit` while MPI starts ends
/// it with ExitCode::usage if variables of MPI are set. The program itself must end by _exit. The main thread
/// calls this first.
void catch_library_failures();

/// While this object exists, `watchdog` ends the job on such a failure and records the reason; otherwise the
/// process only ends itself. One at a time.
class FailuresEndJob {
 public:
  explicit FailuresEndJob(Watchdog& watchdog);
  ~FailuresEndJob();
  FailuresEndJob(const FailuresEndJob&) = delete;
  FailuresEndJob& operator=(const FailuresEndJob&) = delete;
};

/// From now on, exit() is no failure: MPI_Abort calls it.
void expect_exit();

/// Notes that MPI starts, or has started.
void note_start_of_mpi(bool starts);

}  // namespace mylos
