// SPDX-License-Identifier: BSD-3-Clause
// kill_unless_ended_within, exit_unless_ended_within: limit the time that a process takes to exit once no
// other rank watches it, by the real time, which MYLOS_CLOCK does not drive.
#pragma once

#include <chrono>

namespace mylos {

/// Has the kernel kill this process (SIGKILL, timer_create(2)), even if it is stopped, unless it ends within
/// `patience`. A later call restarts the timer. If no timer can be created, nothing is killed.
void kill_unless_ended_within(std::chrono::milliseconds patience);

/// Has this process exit with `code` unless it ends within `patience`; by SIGALRM, so not while it is
/// stopped. First tells a launcher that speaks PMI (Hydra, Slurm's pmi2), as MPI_Finalize does at its end,
/// that the process has left MPI: otherwise Hydra would kill the processes that are still there.
void exit_unless_ended_within(std::chrono::milliseconds patience, int code);

/// After MPI_Finalize and `exit_unless_ended_within`, of a process that exits without running exit handlers:
/// tells the launcher that it has ended well, if MPI has not. MPICH 4.0 does so in MPI_Finalize, 4.2 in an
/// exit handler; without it, Hydra kills the other ranks.
void leave_launcher();

}  // namespace mylos
