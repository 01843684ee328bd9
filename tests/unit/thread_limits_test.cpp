// SPDX-License-Identifier: BSD-3-Clause
// CPU quotas from folders that look like a machine's, and the limits on threads that follow.
#include "core/base/thread_limits.hpp"

#include <cstdlib>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/processors.hpp"

namespace mylos {
namespace {

namespace fs = std::filesystem;

class CpuQuotaTest : public testing::Test {
 protected:
  CpuQuotaTest() {
    std::string pattern = (fs::temp_directory_path() / "mylos-quota-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~CpuQuotaTest() override { fs::remove_all(root_); }

  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << '\n';
  }
  double cpus() const {
    const auto quota = cpu_quota(root_);
    return quota ? quota->cpus : 0.0;
  }
  void mount_v2(const std::string& top) {
    write("proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n30 23 0:26 " + top +
                                     " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw");
  }
  void mount_v1(const std::string& top) {
    write("proc/self/mountinfo",
          "31 23 0:27 " + top + " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n32 23 0:28 " +
              top + " /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset");
  }

  fs::path root_;
};

TEST_F(CpuQuotaTest, IsNoneWithoutControlGroups) {
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
}

TEST_F(CpuQuotaTest, OfVersion2IsTheSmallestOfTheGroupAndThoseAbove) {
  mount_v2("/");
  write("proc/self/cgroup", "0::/user.slice/job.scope");
  write("sys/fs/cgroup/user.slice/job.scope/cpu.max", "max 100000");
  EXPECT_EQ(cpus(), 0.0);
  write("sys/fs/cgroup/user.slice/cpu.max", "250000 100000");
  EXPECT_EQ(cpus(), 2.5);
  EXPECT_EQ(cpu_quota(root_)->group, (root_ / "sys/fs/cgroup/user.slice").string());
  write("sys/fs/cgroup/user.slice/job.scope/cpu.max", "50000 100000");
  EXPECT_EQ(cpus(), 0.5);
  write("sys/fs/cgroup/user.slice/job.scope/cpu.max", "900000 100000");
  EXPECT_EQ(cpus(), 2.5);
}

TEST_F(CpuQuotaTest, OfAContainerIsAtItsMountPoint) {
  write("sys/fs/cgroup/cpu.max", "200000 100000");
  mount_v2("/");
  write("proc/self/cgroup", "0::/");  // with a namespace of its own
  EXPECT_EQ(cpus(), 2.0);
  write("proc/self/cgroup", "0::/../../elsewhere");
  EXPECT_EQ(cpus(), 2.0);
  mount_v2("/docker/0123");
  write("proc/self/cgroup", "0::/docker/0123");
  EXPECT_EQ(cpus(), 2.0);
}

TEST_F(CpuQuotaTest, OfVersion1) {
  mount_v1("/");
  write("proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/docker/0123\n0::/");
  const fs::path group = "sys/fs/cgroup/cpu,cpuacct/docker/0123";
  write(group / "cpu.cfs_quota_us", "-1");
  write(group / "cpu.cfs_period_us", "50000");
  EXPECT_EQ(cpus(), 0.0);
  write(group / "cpu.cfs_quota_us", "200000");
  EXPECT_EQ(cpus(), 4.0);
  write("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "150000");
  write("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpus(), 1.5);
  // The host's path, which does not exist in the container.
  write("proc/self/cgroup", "4:cpu,cpuacct:/kubepods/pod7");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpus(), 3.0);
}

ThreadLimit smallest_of(std::int64_t processors, int sharing, std::optional<CpuQuota> quota,
                        int sharing_quota) {
  const std::vector<ThreadLimit> limits = thread_limits(processors, sharing, quota, sharing_quota);
  return smallest(limits);
}

TEST(ThreadLimits, AreProcessorsOrQuotaWhicheverIsSmaller) {
  EXPECT_EQ(smallest_of(64, 1, std::nullopt, 1).threads, 64);
  EXPECT_EQ(smallest_of(64, 1, std::nullopt, 1).name, "64 cores");
  EXPECT_EQ(smallest_of(64, 1, CpuQuota{4.0, ""}, 1).threads, 4);
  EXPECT_EQ(smallest_of(64, 1, CpuQuota{4.0, ""}, 1).name, "CPU quota of 4.0");
  EXPECT_EQ(smallest_of(2, 1, CpuQuota{4.0, ""}, 1).threads, 2);
  EXPECT_EQ(smallest_of(64, 1, CpuQuota{0.5, ""}, 1).threads, 1);
  EXPECT_EQ(smallest_of(64, 1, CpuQuota{2.9, ""}, 1).threads, 2);
  EXPECT_EQ(smallest_of(8, 4, CpuQuota{6.0, ""}, 4).threads, 1);
  EXPECT_EQ(smallest_of(2, 4, std::nullopt, 1).threads, 1);
}

TEST(ThreadLimits, OfThisMachineAreAtLeastOne) {
  EXPECT_GE(default_threads(), 1);
  EXPECT_LE(default_threads(), std::ssize(own_processors()));
  EXPECT_EQ(startable_threads(0), 0);
  EXPECT_EQ(startable_threads(3), 3);
  EXPECT_EQ(startable_threads(1, std::size_t{1} << 60U), 0);
}

/// Slurm's variables, only for the lifetime of a test.
class SlurmThreads : public testing::Test {
 protected:
  ~SlurmThreads() override { clear(); }
  static void clear() {
    for (const char* name :
         {"SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"})
      ::unsetenv(name);
  }
  /// The limit with these variables alone; 0 if there is none.
  static std::int64_t limit(int sharing, const std::vector<std::pair<const char*, const char*>>& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    const auto allotted = slurm_threads(sharing);
    return allotted ? allotted->threads : 0;
  }
};

TEST_F(SlurmThreads, AreTheFewerOfTheTasksAndTheNodes) {
  EXPECT_EQ(limit(1, {}), 0);
  EXPECT_EQ(limit(2, {{"SLURM_CPUS_PER_TASK", "6"}}), 6);
  EXPECT_EQ(limit(1, {{"SLURM_CPUS_ON_NODE", "8"}}), 8);
  EXPECT_EQ(limit(2, {{"SLURM_CPUS_ON_NODE", "8"}}), 4);
  EXPECT_EQ(limit(3, {{"SLURM_CPUS_ON_NODE", "2"}}), 1);
  EXPECT_EQ(limit(2, {{"SLURM_CPUS_PER_TASK", "6"}, {"SLURM_CPUS_ON_NODE", "8"}}), 4);
  EXPECT_EQ(limit(2, {{"SLURM_CPUS_PER_TASK", "3"}, {"SLURM_CPUS_ON_NODE", "8"}}), 3);
  EXPECT_EQ(limit(2, {{"SLURM_CPUS_PER_TASK", "many"}, {"SLURM_CPUS_ON_NODE", "0"}}), 0);
}

TEST_F(SlurmThreads, AreDividedAmongTheTasksOfTheirNode) {
  const auto on_node = [](const char* node) {
    return limit(
        1,
        {{"SLURM_CPUS_ON_NODE", "12"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3,1"}, {"SLURM_NODEID", node}});
  };
  EXPECT_EQ(on_node("0"), 6);
  EXPECT_EQ(on_node("1"), 6);
  EXPECT_EQ(on_node("2"), 4);
  EXPECT_EQ(on_node("3"), 12);
  EXPECT_EQ(on_node("4"), 12);  // of another step: nothing is known
  EXPECT_EQ(limit(4, {{"SLURM_CPUS_ON_NODE", "12"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}}),
            3);  // under mpiexec
}

}  // namespace
}  // namespace mylos
