// SPDX-License-Identifier: BSD-3-Clause
// How many threads a process may use: its processors, the CPU quota of its container, what Slurm allotted,
// and what can be started.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mylos {

/// The CPU time that the processes of a control group may take together.
struct CpuQuota {
  double cpus = 0.0;  ///< seconds of CPU time per second
  std::string group;  ///< the folder of the group that sets it
};

/// Returns the smallest quota of this process's control group and of the groups above it that are visible
/// here; of version 1 (cpu.cfs_quota_us) and version 2 (cpu.max). Empty if there is none. `root` is the root
/// of the file system. What cannot be read sets no quota.
std::optional<CpuQuota> cpu_quota(const std::filesystem::path& root = "/");

/// An upper limit on threads and what sets it, such as "64 cores".
struct ThreadLimit {
  std::int64_t threads = 0;
  std::string name;
};

/// Returns the limits by processors and by quota for each of `sharing` processes that share the processors,
/// and of `sharing_quota` that share the quota.
std::vector<ThreadLimit> thread_limits(std::int64_t processors, int sharing,
                                       const std::optional<CpuQuota>& quota, int sharing_quota);

/// Returns what Slurm allotted to each of `sharing` processes on this node; empty if it says nothing. Where
/// Slurm does not bind (TaskPlugin=task/none), a process may use more processors than it was given.
std::optional<ThreadLimit> slurm_threads(int sharing);

/// How a process shares what it may use with others of its job, on the same node.
struct Sharing {
  int processors = 1;  ///< how many may use the same processors as this one
  int index = 0;       ///< how many of these come before it
  int quota = 1;       ///< how many are in the control group that sets its quota
  int node = 1;        ///< how many are on the node, among which Slurm's processors are divided
};

/// Returns the limits on the threads of this process: its share of the processors that the calling thread may
/// use, then its share of the CPU quota, if there is one, and what Slurm allotted to it, if it says so.
std::vector<ThreadLimit> own_thread_limits(const Sharing& sharing = {});

/// Returns the smallest limit, which allows at least one thread; the first of equal ones. `limits` is not
/// empty.
const ThreadLimit& smallest(std::span<const ThreadLimit> limits);

/// Returns the number of threads that a process by itself should use.
int default_threads();

/// Starts up to `count` threads that exist at the same time, and ends them. Returns how many could be
/// started. `stack_bytes`: the size of their stacks, 0 for the default.
int startable_threads(int count, std::size_t stack_bytes = 0);

/// Returns the message for a thread that cannot be started, with the limits that may be the cause.
std::string thread_problem();

}  // namespace mylos
