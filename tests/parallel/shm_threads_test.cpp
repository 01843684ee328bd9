// SPDX-License-Identifier: BSD-3-Clause
// comm_shm with ranks that are threads of one process, so that ThreadSanitizer sees all of their accesses.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <semaphore>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "backends/comm_shm/node.hpp"
#include "backends/comm_shm/process_memory.hpp"
#include "backends/comm_shm/shm_communicator.hpp"
#include "tests/parallel/shm_cases.hpp"

namespace mylos::comm_shm {
namespace {

/// Memory of the process, which all its threads see at one address.
class HeapMemory final : public SharedMemory {
 public:
  Offer offer(std::size_t bytes) override {
    constexpr std::align_val_t page{4096};
    const SharedBytes memory(new (page) std::byte[bytes](), [](std::byte* m) { operator delete[](m, page); });
    const std::lock_guard lock(mutex_);
    const auto key = static_cast<std::int64_t>(offers_.size());
    offers_.push_back(memory);
    return {memory, key, nullptr};
  }
  SharedBytes map(std::int64_t key, std::size_t /*bytes*/) override {
    const std::lock_guard lock(mutex_);
    return offers_[static_cast<std::size_t>(key)].lock();
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<std::byte>> offers_;
};

/// Connects the threads before they have a communicator.
class ThreadBootstrap final : public Communicator {
 public:
  struct Meeting {
    explicit Meeting(int ranks) : arrived(ranks), inputs(static_cast<std::size_t>(ranks)) {}
    std::barrier<> arrived;
    std::vector<const void*> inputs;
  };

  ThreadBootstrap(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_.inputs.size()); }
  Request all_gather(TensorRef input, TensorRef output) override {
    meeting_.inputs[static_cast<std::size_t>(rank_)] = input.data;
    meeting_.arrived.arrive_and_wait();
    auto* to = static_cast<std::byte*>(output.data);
    for (const void* from : meeting_.inputs) {
      std::memcpy(to, from, input.bytes());
      to += input.bytes();
    }
    meeting_.arrived.arrive_and_wait();
    return {};
  }
  void abort(ExitCode /*code*/, const std::string& /*message*/) override { std::abort(); }

  Request all_reduce(TensorRef /*buffer*/, ReduceOp /*op*/) override { return missing(); }
  Request reduce_scatter(TensorRef /*in*/, TensorRef /*out*/, ReduceOp /*op*/) override { return missing(); }
  Request broadcast(TensorRef /*buffer*/, int /*root*/) override { return missing(); }
  Request reduce(TensorRef /*buffer*/, ReduceOp /*op*/, int /*root*/) override { return missing(); }
  Request all_to_all(TensorRef /*in*/, TensorRef /*out*/) override { return missing(); }
  Request all_to_all_v(TensorRef /*in*/, std::span<const std::int64_t> /*send_counts*/, TensorRef /*out*/,
                       std::span<const std::int64_t> /*recv_counts*/) override {
    return missing();
  }
  Request send(TensorRef /*buffer*/, int /*peer*/, int /*tag*/) override { return missing(); }
  Request recv(TensorRef /*buffer*/, int /*peer*/, int /*tag*/) override { return missing(); }
  void barrier() override { missing(); }
  std::unique_ptr<Communicator> split(int /*color*/, int /*key*/) override {
    missing();
    return nullptr;
  }

 private:
  static Request missing() { fail(ExitCode::internal, "the bootstrap of threads only gathers"); }

  Meeting& meeting_;
  int rank_;
};

void run_on_threads(int ranks, const std::function<void(Communicator&)>& check) {
  ThreadBootstrap::Meeting meeting(ranks);
  const auto memory = std::make_shared<HeapMemory>();
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadBootstrap bootstrap(meeting, rank);
      const auto comm = ShmCommunicator::create({.memory = memory, .bootstrap = &bootstrap}, members);
      check(*comm);
      comm->barrier();
    });
  }
}

TEST(ShmThreads, CollectivesInWindows) {
  for (const int ranks : {1, 2, 3}) {
    run_on_threads(ranks, [](Communicator& comm) {
      check_collectives_in_windows(comm, 3, 1001);
      check_collectives_in_windows(comm, 0, 20000);
    });
  }
}

TEST(ShmThreads, OutputsWithinInputs) {
  run_on_threads(3, check_outputs_within_inputs);
}

TEST(ShmThreads, MixedOrdersOfWaits) {
  run_on_threads(3, check_mixed_orders_of_waits);
}

TEST(ShmThreads, WindowsComeAndGo) {
  run_on_threads(3, check_windows_come_and_go);
}

TEST(ShmThreads, ManyOperationsUnderWay) {
  run_on_threads(3, check_many_operations_under_way);
}

TEST(ShmThreads, Messages) {
  run_on_threads(3, [](Communicator& comm) {
    check_tags_in_any_order(comm);
    check_large_messages(comm, 50000);
    check_large_messages(comm, 200000);
  });
}

/// The sender blocks outside its communicator, as if it computed, so it does not advance its messages.
TEST(ShmThreads, LargeMessagesArriveWhileTheSenderIsAway) {
  constexpr std::int64_t count = 3 << 17;  // 1.5 MiB, several times the size of a ring
  constexpr std::chrono::minutes hang_limit(4);
  std::binary_semaphore received{0};
  run_on_threads(2, [&](Communicator& comm) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(count, comm.rank() == 0 ? 1.0F + static_cast<float>(round) : 0.0F);
      const TensorRef buffer(values.data(), DType::fp32, {count});
      if (comm.rank() == 0) {
        Request request = comm.send(buffer, 1, 7);
        EXPECT_TRUE(received.try_acquire_for(hang_limit));
        request.host_wait();
      } else {
        comm.recv(buffer, 0, 7).host_wait();
        EXPECT_EQ(std::ranges::count(values, 1.0F + static_cast<float>(round)), count);
        received.release();
      }
    }
  });
}

TEST(ShmThreads, RunsAlongsideAProgressThread) {
  run_on_threads(2, check_alongside_a_progress_thread);
}

// The mappings may be large: pages that are never touched cost nothing.
TEST(ProcessMemory, MappingsDoNotLieAPowerOfTwoApart) {
  ProcessMemory memory;
  for (const std::size_t bytes : {std::size_t{1} << 28U, std::size_t{1} << 29U, std::size_t{1} << 30U}) {
    std::vector<SharedMemory::Offer> offers;
    for (int rank = 0; rank < 4; ++rank) offers.push_back(memory.offer(bytes));
    for (std::size_t a = 0; a < offers.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const std::ptrdiff_t distance = offers[a].memory.get() - offers[b].memory.get();
        EXPECT_NE(distance % (std::ptrdiff_t{1} << 28U), 0) << bytes << " bytes, " << a << " and " << b;
      }
    }
  }
}

}  // namespace
}  // namespace mylos::comm_shm

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
