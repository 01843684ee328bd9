// SPDX-License-Identifier: BSD-3-Clause
// What the launcher (mpiexec, srun) says of this process, and whether MPI says the same.
#pragma once

#include <string_view>

namespace mylos {

/// Returns this process's rank according to the launcher's variables, which are there before MPI starts; 0 if
/// there are none.
int launched_rank();

/// Removes the launcher's variables: this process is then a job of its own, whatever started it.
void forget_launcher();

/// Throws ExitCode::usage if the launcher started another number of processes than `mpi_size`, which is
/// MPI's: srun without PMI, or the mpiexec of another MPI library. Warns if this is the only process of a
/// Slurm job that has several tasks.
void check_launch(int mpi_size);

/// Throws ExitCode::usage if the launcher started several processes of `command`, which is for one.
void check_only_process(std::string_view command);

}  // namespace mylos
