// SPDX-License-Identifier: BSD-3-Clause
// What this process runs on: the host, and the job of the batch system.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mylos {

/// Returns the name of this machine.
std::string host_name();

/// Returns the value of an environment variable that is a whole number, such as a count that a launcher sets.
/// Empty if the variable is not set or is something else.
std::optional<std::int64_t> number_in_environment(const char* name);

/// The Slurm job that a process belongs to; see "Output environment variables" of sbatch(1) and srun(1).
struct SlurmJob {
  std::string id;             ///< SLURM_JOB_ID, which a task of an array has too
  std::int64_t restarts = 0;  ///< SLURM_RESTART_COUNT: how many times it was requeued
};

/// Returns this process's job according to the variables that Slurm sets; empty if there is none.
std::optional<SlurmJob> slurm_job();

/// Returns the text "process 12 on n1, Slurm job 17", for people who look for a process.
std::string own_process();

}  // namespace mylos
