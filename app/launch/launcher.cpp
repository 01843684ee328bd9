// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/launcher.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include "app/launch/mpi_version.hpp"
#include "core/base/error.hpp"
#include "core/base/host.hpp"
#include "core/base/say.hpp"

namespace mylos {

namespace {

/// Variables in which launchers give each process the number of processes and its rank.
struct Launcher {
  const char* size;
  const char* rank;
};

constexpr const char* step_size = "SLURM_STEP_NUM_TASKS";

/// The first of these whose size is set is right: under mpiexec in Slurm, the variables of the step count the
/// proxies of mpiexec.
constexpr Launcher launchers[] = {
    {"PMI_SIZE", "PMI_RANK"},
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
    {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
    {step_size, "SLURM_PROCID"},
};

/// What the launcher says of this process.
struct Launched {
  std::int64_t processes = 1;
  std::int64_t rank = 0;
  std::string_view variable;  ///< of the number of processes

  std::string setting() const { return fmt::format("{}={}", variable, processes); }
};

/// Whether the variables of a Slurm step are those of the step in which a job was submitted: srun sets
/// SLURM_NTASKS to the tasks of its step.
bool is_of_outer_step(std::int64_t size) {
  return size > number_in_environment("SLURM_NTASKS").value_or(size);
}

std::optional<Launched> launched_as() {
  for (const Launcher& launcher : launchers) {
    const auto size = number_in_environment(launcher.size);
    if (!size || *size < 1 || (launcher.size == step_size && is_of_outer_step(*size))) continue;
    const std::int64_t rank = number_in_environment(launcher.rank).value_or(0);
    return Launched{*size, rank >= 0 && rank < *size ? rank : 0, launcher.size};
  }
  return std::nullopt;
}

std::string plural(std::int64_t count, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

constexpr const char* meant = "or --alone if each process is meant to be a job of its own";

}  // namespace

int launched_rank() {
  const std::optional<Launched> launched = launched_as();
  return launched ? static_cast<int>(launched->rank) : 0;
}

void forget_launcher() {
  // Those by which MPI finds its launcher, and those that this file reads.
  constexpr std::string_view prefixes[] = {
      "PMI_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "FLUX_JOB_", "FLUX_TASK_"};
  std::vector<std::string> names = {step_size, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (std::ranges::any_of(prefixes, [&](std::string_view prefix) { return text.starts_with(prefix); }))
      names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

void check_launch(int mpi_size) {
  const std::optional<Launched> launched = launched_as();
  const bool is_srun = launched && launched->variable == step_size;
  if (launched && launched->processes != mpi_size) {
    // srun counts the processes of one component of a heterogeneous step, MPI those of all.
    if (is_srun && mpi_size > launched->processes && std::getenv("SLURM_HET_SIZE") != nullptr) return;
    fail(ExitCode::usage, "the launcher started {} ({}), but MPI ({}) has {}: start mylos with {}, {}",
         plural(launched->processes, "process", "processes"), launched->setting(), mpi_version(),
         plural(mpi_size, "rank", "ranks"),
         is_srun || slurm_job() ? "srun --mpi=pmi2, or with the mpiexec of this MPI library"
                                : "the mpiexec of this MPI library",
         meant);
  }
  const std::optional<SlurmJob> job = slurm_job();
  const auto tasks = number_in_environment("SLURM_NTASKS");  // not set if only nodes were asked for
  const std::int64_t parts = tasks ? *tasks : number_in_environment("SLURM_JOB_NUM_NODES").value_or(1);
  if (job && parts > 1 && mpi_size == 1 && (!launched || is_srun)) {
    say(stderr,
        "warning: this is one process, but Slurm job {} has {} {}: start mylos with srun --mpi=pmi2, or say "
        "--alone\n",
        job->id, parts, tasks ? "tasks" : "nodes");
  }
}

void check_only_process(std::string_view command) {
  const std::optional<Launched> launched = launched_as();
  if (!launched || launched->processes == 1) return;
  fail(ExitCode::usage,
       "{} is for one process, but the launcher started {} ({}): start it without a launcher, {}", command,
       launched->processes, launched->setting(), meant);
}

}  // namespace mylos
