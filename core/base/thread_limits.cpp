// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/thread_limits.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <pthread.h>
#include <sstream>
#include <sys/resource.h>

#include <fmt/core.h>

#include "core/base/host.hpp"
#include "core/base/join.hpp"
#include "core/base/processors.hpp"
#include "core/base/semaphore.hpp"

namespace mylos {

namespace {

namespace fs = std::filesystem;

/// A mounted hierarchy of control groups.
struct Hierarchy {
  fs::path top;    ///< the group whose folder is the mount point
  fs::path mount;  ///< the mount point
  bool is_v2 = false;
};

bool has_word(std::string_view list, std::string_view word) {
  const auto words = split(list, ',');
  return std::ranges::find(words, word) != words.end();
}

/// The hierarchies that limit CPU time. See proc_pid_mountinfo(5).
std::vector<Hierarchy> hierarchies(const fs::path& root) {
  std::vector<Hierarchy> found;
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::size_t separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::istringstream left(line.substr(0, separator));
    std::istringstream right(line.substr(separator + 3));
    std::string id, parent, device, top, mount, type, source, options;
    left >> id >> parent >> device >> top >> mount;
    right >> type >> source >> options;
    if (type == "cgroup2") found.push_back({top, mount, true});
    if (type == "cgroup" && has_word(options, "cpu")) found.push_back({top, mount, false});
  }
  return found;
}

/// The group of this process in a hierarchy; empty if it has none. See cgroups(7).
std::string own_group(const fs::path& root, bool is_v2) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_v2 ? controllers.empty() : has_word(controllers, "cpu")) return line.substr(second + 1);
  }
  return "";
}

/// The quota that the folder of a group sets; infinite if it sets none.
double quota_of(const fs::path& group, bool is_v2) {
  double quota = -1.0;
  double period = 0.0;
  if (is_v2) {
    std::ifstream(group / "cpu.max") >> quota >> period;  // "max 100000" sets none
  } else {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;  // -1 sets none
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  return quota > 0.0 && period > 0.0 ? quota / period : INFINITY;
}

/// The tasks of this process's Slurm step on this node; 0 if there is no step. SLURM_STEP_TASKS_PER_NODE is
/// "2(x3),1" if three nodes have two tasks and one has one.
std::int64_t slurm_tasks_here() {
  const char* all = std::getenv("SLURM_STEP_TASKS_PER_NODE");
  std::int64_t node = number_in_environment("SLURM_NODEID").value_or(0);
  for (const std::string_view part : split(all != nullptr ? all : "", ',')) {
    int tasks = 0;
    int nodes = 1;
    if (std::sscanf(std::string(part).c_str(), "%6d(x%6d)", &tasks, &nodes) < 1) return 0;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return 0;
}

}  // namespace

std::optional<CpuQuota> cpu_quota(const fs::path& root) {
  std::optional<CpuQuota> smallest;
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    const std::string own = own_group(root, hierarchy.is_v2);
    if (own.empty()) continue;
    // In a container, the path may be the host's, which does not exist here: then the mount point is the
    // group.
    fs::path below = fs::path(own).lexically_relative(hierarchy.top);
    const fs::path mount = root / hierarchy.mount.relative_path();
    std::error_code error;
    if (below.empty() || *below.begin() == ".." || !fs::exists(mount / below, error)) below = ".";
    for (fs::path group = (mount / below).lexically_normal();; group = group.parent_path()) {
      if (!group.has_filename()) group = group.parent_path();  // ends in a slash
      const double cpus = quota_of(group, hierarchy.is_v2);
      if (std::isfinite(cpus) && (!smallest || cpus < smallest->cpus)) smallest = {cpus, group.string()};
      if (group == mount.lexically_normal() || !group.has_relative_path()) break;
    }
  }
  return smallest;
}

std::vector<ThreadLimit> thread_limits(std::int64_t processors, int sharing,
                                       const std::optional<CpuQuota>& quota, int sharing_quota) {
  const auto among = [](int count) { return count > 1 ? fmt::format(" for {} ranks", count) : ""; };
  std::vector<ThreadLimit> limits = {
      {processors / sharing,
       fmt::format("{} core{}{}", processors, processors == 1 ? "" : "s", among(sharing))}};
  if (quota)
    limits.push_back({static_cast<std::int64_t>(quota->cpus / sharing_quota),
                      fmt::format("CPU quota of {:.1f}{}", quota->cpus, among(sharing_quota))});
  for (ThreadLimit& limit : limits) limit.threads = std::max<std::int64_t>(1, limit.threads);
  return limits;
}

std::optional<ThreadLimit> slurm_threads(int sharing) {
  std::vector<ThreadLimit> limits;
  if (const auto cpus = number_in_environment("SLURM_CPUS_PER_TASK"); cpus && *cpus > 0)
    limits.push_back({*cpus, fmt::format("SLURM_CPUS_PER_TASK={}", *cpus)});
  if (const auto cpus = number_in_environment("SLURM_CPUS_ON_NODE"); cpus && *cpus > 0) {
    // mpiexec may start more processes than the step has tasks, and a task need not be a rank of this job.
    const std::int64_t tasks = std::max({std::int64_t{1}, std::int64_t{sharing}, slurm_tasks_here()});
    limits.push_back({std::max<std::int64_t>(1, *cpus / tasks),
                      fmt::format("SLURM_CPUS_ON_NODE={}{}", *cpus,
                                  tasks == 1 ? "" : fmt::format(" for {} ranks", tasks))});
  }
  return limits.empty() ? std::nullopt : std::optional(smallest(limits));
}

std::vector<ThreadLimit> own_thread_limits(const Sharing& sharing) {
  std::vector<ThreadLimit> limits =
      thread_limits(std::ssize(own_processors()), sharing.processors, cpu_quota(), sharing.quota);
  if (const auto allotted = slurm_threads(sharing.node)) limits.push_back(*allotted);
  return limits;
}

const ThreadLimit& smallest(std::span<const ThreadLimit> limits) {
  return *std::ranges::min_element(limits, {}, &ThreadLimit::threads);
}

int default_threads() {
  return static_cast<int>(smallest(own_thread_limits()).threads);
}

int startable_threads(int count, std::size_t stack_bytes) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return 0;
  std::vector<pthread_t> threads;
  threads.reserve(static_cast<std::size_t>(std::max(count, 0)));
  Semaphore end;
  const bool is_possible = stack_bytes == 0 || pthread_attr_setstacksize(&attributes, stack_bytes) == 0;
  while (is_possible && std::ssize(threads) < count) {
    const auto wait = [](void* semaphore) -> void* {
      static_cast<Semaphore*>(semaphore)->acquire();
      return nullptr;
    };
    pthread_t thread{};
    if (pthread_create(&thread, &attributes, wait, &end) != 0) break;
    threads.push_back(thread);
  }
  for (std::size_t i = 0; i < threads.size(); ++i) end.release();
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  return static_cast<int>(threads.size());
}

std::string thread_problem() {
  std::string text = "cannot start a thread (ulimit -u, pids limit)";
  rlimit space{};
  rlimit data{};
  // The system gives the same error for a thread without a stack.
  const bool is_limited = (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) ||
                          (getrlimit(RLIMIT_DATA, &data) == 0 && data.rlim_cur != RLIM_INFINITY);
  if (is_limited) text += ", or out of memory for its stack (ulimit -v, -d)";
  return text;
}

}  // namespace mylos
