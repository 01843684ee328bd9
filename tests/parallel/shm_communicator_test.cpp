// SPDX-License-Identifier: BSD-3-Clause
// comm_shm: windows, orders of waits and tags, nodes, and no memory left behind.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/param_values.hpp"
#include "tests/parallel/shm_cases.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

class ShmCommunicator : public testing::Test {
 protected:
  Communicator& comm() { return *handle_; }

 private:
  std::unique_ptr<Communicator> handle_ = open_communicator("shm");
};

TEST_F(ShmCommunicator, CollectivesInWindows) {
  for (const std::int64_t start : {0, 1, 13}) {
    for (const std::int64_t count : {8, 1001, 40000, 100003})
      check_collectives_in_windows(comm(), start, count);
  }
}

TEST_F(ShmCommunicator, CollectivesInWindowsBeyondTheCaches) {
  check_collectives_in_windows(comm(), 5, 1500007);
}

TEST_F(ShmCommunicator, OutputsWithinInputs) {
  check_outputs_within_inputs(comm());
}

// If terms were added one by one in bf16, 256 + 1 would lose the 1 each time.
TEST_F(ShmCommunicator, SumsOfBf16AreRoundedOnce) {
  if (comm().size() % 2 == 0) GTEST_SKIP() << "an odd number of ranks has a sum that bf16 holds";
  constexpr std::int64_t n = 5000;
  const Window window = comm().allocate(n * sizeof(bf16));
  std::vector<bf16> memory(n);
  for (bf16* data : {static_cast<bf16*>(window.get()), memory.data()}) {
    std::fill_n(data, n, bf16(comm().rank() == 0 ? 256.0F : 1.0F));
    comm().all_reduce(TensorRef(data, DType::bf16, {n}), ReduceOp::sum).host_wait();
    const float sum = 255.0F + static_cast<float>(comm().size());
    EXPECT_TRUE(std::all_of(data, data + n, [&](bf16 x) { return static_cast<float>(x) == sum; }));
    comm().barrier();
  }
}

TEST_F(ShmCommunicator, MixedOrdersOfWaits) {
  check_mixed_orders_of_waits(comm());
}

TEST_F(ShmCommunicator, WindowsComeAndGo) {
  check_windows_come_and_go(comm());
}

TEST_F(ShmCommunicator, WindowsOutliveTheirCommunicator) {
  auto all = comm().split(0, 0);
  const Window window = all->allocate(1 << 20);
  all.reset();
  std::fill_n(static_cast<std::byte*>(window.get()), 1 << 20, std::byte{1});
}

TEST_F(ShmCommunicator, ManyOperationsUnderWay) {
  check_many_operations_under_way(comm());
}

TEST_F(ShmCommunicator, TagsInAnyOrder) {
  check_tags_in_any_order(comm());
}

TEST_F(ShmCommunicator, LargeMessagesInAllDirections) {
  check_large_messages(comm(), 1 << 20);
}

TEST_F(ShmCommunicator, RunsAlongsideAProgressThread) {
  check_alongside_a_progress_thread(comm());
}

TEST_F(ShmCommunicator, RanksThatSleepAreWoken) {
  for (int late = 0; late < comm().size(); ++late) {
    if (comm().rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    comm().barrier();
  }
}

TEST_F(ShmCommunicator, SplitsOfSplitsOutliveTheirParents) {
  auto half = comm().split(comm().rank() % 2, 0);
  const auto quarter = half->split(half->rank() % 2, 0);
  half.reset();
  std::vector<std::int32_t> ones(100, 1);
  quarter->all_reduce(TensorRef(ones.data(), DType::int32, {100}), ReduceOp::sum).host_wait();
  EXPECT_EQ(ones, std::vector<std::int32_t>(100, quarter->size()));
}

TEST(ShmNodes, GroupsConsecutiveRanksIntoSimulatedNodes) {
  const std::unique_ptr<Communicator> world = open_communicator("mpi");
  ParamValues deck;
  deck.set("comm.ranks_per_node", std::int64_t{2});
  const std::unique_ptr<Communicator> node = open_communicator("shm", nullptr, &deck);
  const int first = world->rank() / 2 * 2;
  EXPECT_EQ(node->size(), std::min(2, world->size() - first));
  EXPECT_EQ(node->rank(), world->rank() - first);
  std::int32_t sum = world->rank();
  node->all_reduce(TensorRef(&sum, DType::int32, {1}), ReduceOp::sum).host_wait();
  EXPECT_EQ(sum, node->size() == 2 ? 2 * first + 1 : first);
}

/// The number of mappings of this process whose name contains `name`.
int count_mappings(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name) != std::string::npos ? 1 : 0;
  return count;
}

// Memory without a name in a file system is freed with the last process that maps it, however that process
// ends.
TEST(ShmMemory, HasNoNameAndIsUnmapped) {
  open_communicator("mpi");
  const int named = count_mappings("/dev/shm/");
  {
    const std::unique_ptr<Communicator> comm = open_communicator("shm");
    const Window window = comm->allocate(1 << 20);
    const auto part = comm->split(0, 0);
    EXPECT_EQ(count_mappings("/memfd:mylos"), 3 * comm->size());
    for (int i = 0; i < 100; ++i) EXPECT_NE(comm->allocate(1 << 20), nullptr);
    EXPECT_EQ(count_mappings("/memfd:mylos"), 3 * comm->size());
    EXPECT_EQ(count_mappings("/dev/shm/"), named);
  }
  EXPECT_EQ(count_mappings("/memfd:mylos"), 0);
}

}  // namespace
}  // namespace mylos
