// SPDX-License-Identifier: BSD-3-Clause
// Collectives by algorithm and in two levels over comm_shm: wire traffic, overlapping operations, progress
// without waiting, simulated links. communicator_test.cpp checks the results of each operation and type.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/collectives/algorithm_communicator.hpp"
#include "parallel/collectives/choose_algorithms.hpp"
#include "parallel/collectives/hierarchical.hpp"
#include "parallel/collectives/progress_thread.hpp"
#include "parallel/collectives/schedule_cost.hpp"
#include "parallel/collectives/simulated_link.hpp"
#include "tests/parallel/samples.hpp"
#include "tests/support/test_plugins.hpp"
#include "tests/support/waiting.hpp"

namespace mylos {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t nanoseconds(std::chrono::nanoseconds duration) {
  return duration.count();
}

std::vector<float> make(std::int64_t n, const std::function<float(std::int64_t)>& value) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = value(i);
  return values;
}

TensorRef ref(std::vector<float>& values) {
  return {values.data(), DType::fp32, {static_cast<std::int64_t>(values.size())}};
}

/// A clock that advances in sleep_until and otherwise stands at the time that a test sets.
class StandingClock : public LinkClock {
 public:
  std::int64_t now() override { return time; }
  bool has_come(std::int64_t moment) override { return time >= moment; }
  void sleep_until(std::int64_t moment) override {
    time = std::max(time, moment);
    ++sleeps;
  }

  std::int64_t time = 0;
  int sleeps = 0;
};

/// A Lamport clock: a query for a delivery advances it at least to the time of that delivery.
class LogicalClock final : public StandingClock {
 public:
  bool has_come(std::int64_t moment) override {
    time = std::max(time, moment);
    return true;
  }
};

class CollectivesTest : public testing::Test {
 protected:
  void SetUp() override {
    world_ = open_communicator("shm");
    rank_ = world_->rank();
    size_ = world_->size();
  }

  /// The sum of sample(r, i) over the ranks.
  float sum(std::int64_t i) const {
    float result = 0.0F;
    for (int r = 0; r < size_; ++r) result += sample(r, i);
    return result;
  }
  std::vector<float> own(std::int64_t n, std::int64_t shift = 0) const {
    return make(n, [&](auto i) { return sample(rank_, i + shift); });
  }
  std::vector<float> expected_sums(std::int64_t n, std::int64_t shift = 0) const {
    return make(n, [&](auto i) { return sum(i + shift); });
  }

  std::unique_ptr<Communicator> world_;
  TrafficCounter counter_;
  int rank_ = 0;
  int size_ = 1;
};

constexpr Algorithm scheduled[] = {Algorithm::naive, Algorithm::tree, Algorithm::ring,
                                   Algorithm::halving_doubling};

TEST_F(CollectivesTest, WireBytesAndStepsAreThoseOfTheSchedules) {
  const auto expect_schedules = [&](Algorithm algorithm, DType dtype) {
    TrafficCounter counter;
    MemoryLedger ledger;
    AlgorithmCommunicator comm(*world_, AlgorithmChoice(algorithm), "data wire", counter, nullptr,
                               std::make_shared<OperationEngine>(&ledger));
    const std::int64_t n = 1003;
    const int root = size_ - 1;
    // Zeros of any type of up to eight bytes.
    std::vector<std::int64_t> part(static_cast<std::size_t>(n));
    std::vector<std::int64_t> whole(static_cast<std::size_t>(n * size_));
    std::vector<std::int64_t> copy(whole.size());
    const TensorRef one(part.data(), dtype, {n});
    const TensorRef all(whole.data(), dtype, {n * size_});
    const TensorRef other(copy.data(), dtype, {n * size_});
    comm.all_reduce(one, ReduceOp::sum).host_wait();
    comm.reduce_scatter(all, one, ReduceOp::sum).host_wait();
    comm.all_gather(one, all).host_wait();
    comm.broadcast(one, root).host_wait();
    comm.reduce(one, ReduceOp::sum, root).host_wait();
    comm.all_to_all(all, other).host_wait();

    ScheduleCost expected;
    for (const CommOperation operation :
         {CommOperation::all_reduce, CommOperation::reduce_scatter, CommOperation::all_gather,
          CommOperation::broadcast, CommOperation::reduce, CommOperation::all_to_all}) {
      const bool rooted = operation == CommOperation::broadcast || operation == CommOperation::reduce;
      const ScheduleCost cost =
          cost_of(make_schedule({operation, size_, n, rooted ? root : 0}, algorithm, rank_), dtype);
      expected.sends += cost.sends;
      expected.receives += cost.receives;
      expected.bytes_sent += cost.bytes_sent;
      expected.bytes_received += cost.bytes_received;
      expected.scratch_bytes = std::max(expected.scratch_bytes, cost.scratch_bytes);
    }
    const TrafficCounter::Axis& wire = counter.axis("data wire");
    EXPECT_EQ(wire.payload_bytes(CommOperation::send), expected.bytes_sent);
    EXPECT_EQ(wire.payload_bytes(CommOperation::recv), expected.bytes_received);
    EXPECT_EQ(wire.calls(CommOperation::send), expected.sends);
    EXPECT_EQ(wire.calls(CommOperation::recv), expected.receives);
    EXPECT_EQ(wire.calls(CommOperation::all_reduce), 0U);
    EXPECT_EQ(ledger.peak(MemoryCategory::communication), expected.scratch_bytes);
  };
  for (const Algorithm algorithm : scheduled) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16, DType::int64}) {
      SCOPED_TRACE(fmt::format("{}, {}", static_cast<int>(algorithm), name_of(dtype)));
      expect_schedules(algorithm, dtype);
    }
  }
}

/// The limit of 400 is one of bytes, whatever the elements are.
TEST_F(CollectivesTest, AlgorithmsFollowThePayload) {
  AlgorithmCommunicator comm(*world_, AlgorithmChoice::parse("naive<400,native"), "wire", counter_);
  std::vector<float> small = own(99);
  std::vector<float> large = own(100);
  const std::uint64_t messages = size_ == 1 ? 0 : rank_ == 0 ? static_cast<std::uint64_t>(size_ - 1) : 1;
  const auto sent = [&] { return counter_.axis("wire").calls(CommOperation::send); };
  comm.all_reduce(ref(small), ReduceOp::sum).host_wait();
  EXPECT_EQ(sent(), messages);
  comm.all_reduce(ref(large), ReduceOp::sum).host_wait();
  EXPECT_EQ(sent(), messages);
  EXPECT_EQ(small, expected_sums(99));
  EXPECT_EQ(large, expected_sums(100));
  std::vector<std::int64_t> zeros(200);
  std::uint64_t expected = messages;
  for (const auto& [dtype, first_native] :
       {std::pair(DType::bf16, 200), std::pair(DType::fp16, 200), std::pair(DType::int64, 50)}) {
    comm.all_reduce({zeros.data(), dtype, {first_native - 1}}, ReduceOp::sum).host_wait();
    expected += messages;
    EXPECT_EQ(sent(), expected) << name_of(dtype);
    comm.all_reduce({zeros.data(), dtype, {first_native}}, ReduceOp::sum).host_wait();
    EXPECT_EQ(sent(), expected) << name_of(dtype);
  }
}

TEST_F(CollectivesTest, RepeatedStepsReuseTheirScratch) {
  MemoryLedger ledger;
  AlgorithmCommunicator comm(*world_, AlgorithmChoice(Algorithm::ring), "wire", counter_, nullptr,
                             std::make_shared<OperationEngine>(&ledger));
  for (int step = 0; step < 30; ++step) {
    std::vector<std::vector<float>> buffers;
    for (int k = 0; k < 4; ++k) buffers.push_back(own(1000 * (k + 1)));
    std::vector<Request> requests;
    for (auto& buffer : buffers) requests.push_back(comm.all_reduce(ref(buffer), ReduceOp::sum));
    for (Request& request : requests) request.host_wait();
  }
  // At most four blocks are in use at a time, and each is allocated in at most four sizes.
  EXPECT_LE(ledger.num_charges(), 16U);
  EXPECT_EQ(ledger.num_charges() > 0, size_ > 1);
}

TEST_F(CollectivesTest, OperationsOnSeveralCommunicatorsOverlapInAnyOrderOfWaits) {
  for (const Algorithm algorithm : scheduled) {
    AlgorithmCommunicator comm(*world_, AlgorithmChoice(algorithm), "wire", counter_);
    const auto halves = comm.split(rank_ % 2, rank_);
    const auto reversed = comm.split(0, -rank_);
    const ProgressThread progress(comm);
    for (int repetition = 0; repetition < 5; ++repetition) {
      std::vector<std::vector<float>> buffers;
      std::vector<std::function<float(std::int64_t)>> expected;
      std::vector<Request> requests;
      buffers.reserve(30);
      const auto begin = [&](Communicator& on, std::function<float(std::int64_t)> sum_there) {
        const auto k = static_cast<std::int64_t>(buffers.size());
        buffers.push_back(own(500 * k + 1));
        expected.push_back(std::move(sum_there));
        requests.push_back(on.all_reduce(ref(buffers.back()), ReduceOp::sum));
      };
      for (int k = 0; k < 10; ++k) {
        begin(comm, [&](auto i) { return sum(i); });
        begin(*halves, [&](auto i) {
          float result = 0.0F;
          for (int r = rank_ % 2; r < size_; r += 2) result += sample(r, i);
          return result;
        });
        begin(*reversed, [&](auto i) { return sum(i); });
      }
      // Every rank waits in a different order.
      std::rotate(requests.begin(), requests.begin() + 7 * rank_ % 30, requests.end());
      for (Request& request : requests) request.host_wait();
      for (std::size_t k = 0; k < buffers.size(); ++k)
        ASSERT_EQ(buffers[k], make(static_cast<std::int64_t>(buffers[k].size()), expected[k])) << k;
    }
  }
}

TEST_F(CollectivesTest, AProgressThreadAdvancesOperationsThatNobodyWaitsFor) {
  AlgorithmCommunicator comm(*world_, AlgorithmChoice(Algorithm::ring), "wire", counter_);
  const std::int64_t n = 10000;
  std::vector<float> buffer = own(n);
  const ProgressThread progress(comm);
  Request request = comm.all_reduce(ref(buffer), ReduceOp::sum);
  const auto steps = static_cast<std::uint64_t>(2 * (size_ - 1));
  EXPECT_TRUE(test::wait_until([&] { return counter_.axis("wire").calls(CommOperation::send) == steps; }));
  request.host_wait();
  EXPECT_EQ(buffer, expected_sums(n));
  comm.barrier();
}

TEST_F(CollectivesTest, RefusesReservedTags) {
  AlgorithmCommunicator comm(*world_, AlgorithmChoice(Algorithm::ring), "wire", counter_);
  std::vector<float> buffer(1);
  EXPECT_THROW(comm.send(ref(buffer), 0, AlgorithmCommunicator::last_user_tag + 1), Error);
  EXPECT_THROW(comm.recv(ref(buffer), 0, AlgorithmCommunicator::last_user_tag + 1), Error);
}

// Simulated links, most of them with clocks that the tests drive.

TEST_F(CollectivesTest, AMessageTakesTheTimeOfTheLinkAndAWaitIsOneSleep) {
  if (size_ < 2) GTEST_SKIP() << "needs two ranks";
  StandingClock clock;
  SimulatedLink link(*world_, {.latency = 0.05, .gigabits_per_second = 0.08}, clock);
  std::vector<float> buffer(250000);  // 1 MB: 0.1 s
  if (rank_ > 1) return;
  if (rank_ == 0) {
    std::ranges::fill(buffer, 3.0F);
    clock.time = nanoseconds(1s);  // the receiver's clock is behind
    link.send(ref(buffer), 1, 5).host_wait();
  } else {
    link.recv(ref(buffer), 0, 5).host_wait();
  }
  EXPECT_EQ(buffer.back(), 3.0F);
  EXPECT_EQ(clock.time, nanoseconds(1150ms));
  EXPECT_EQ(clock.sleeps, 1);
}

TEST_F(CollectivesTest, ALinkCarriesOneMessageAtATimeAndTestNeverBlocks) {
  if (size_ < 3) GTEST_SKIP() << "needs three ranks";
  StandingClock clock;
  SimulatedLink link(*world_, {.latency = 0.0, .gigabits_per_second = 0.004}, clock);
  const auto part = link.split(0, -rank_);
  std::vector<std::vector<float>> buffers(4, std::vector<float>(25000));  // 0.2 s each
  if (rank_ == 0) {
    Request first = link.send(ref(buffers[0]), 1, 1);
    Request elsewhere = link.send(ref(buffers[1]), 2, 1);
    Request second = part->send(ref(buffers[2]), size_ - 2, 1);  // rank 1 again
    link.barrier();                                              // all messages have arrived
    clock.time = nanoseconds(200ms) - 1;
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(first.test() || elsewhere.test());
    clock.time = nanoseconds(200ms);
    EXPECT_TRUE(test::wait_until([&] { return first.test() && elsewhere.test(); }));
    EXPECT_FALSE(second.test());
    second.host_wait();
    EXPECT_EQ(clock.time, nanoseconds(400ms));
    return;
  }
  if (rank_ == 1) {
    Request second = part->recv(ref(buffers[0]), size_ - 1, 1);
    Request first = link.recv(ref(buffers[1]), 0, 1);
    first.host_wait();
    EXPECT_EQ(clock.time, nanoseconds(200ms));
    second.host_wait();
    EXPECT_EQ(clock.time, nanoseconds(400ms));
  } else if (rank_ == 2) {
    link.recv(ref(buffers[0]), 0, 1).host_wait();
    EXPECT_EQ(clock.time, nanoseconds(200ms));
  }
  link.barrier();
}

TEST_F(CollectivesTest, LinksUseTheMonotonicClockByDefault) {
  if (size_ < 2) GTEST_SKIP() << "needs two ranks";
  if (rank_ > 1) return;
  constexpr double latency = 1e-3;
  SimulatedLink link(*world_, {.latency = latency, .gigabits_per_second = 1.0});
  std::vector<float> buffer(1);
  const auto begin = std::chrono::steady_clock::now();
  if (rank_ == 1) return link.recv(ref(buffer), 0, 0).host_wait();
  link.send(ref(buffer), 1, 0).host_wait();
  EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), latency);
}

TEST_F(CollectivesTest, CollectivesOverALinkNeedAnAlgorithm) {
  SimulatedLink link(*world_, {.latency = 0.0, .gigabits_per_second = 100.0});
  std::vector<float> buffer = own(100);
  try {
    link.all_reduce(ref(buffer), ReduceOp::sum);
    ADD_FAILURE() << "the link was bypassed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(
        error.what(),
        "a simulated link cannot run a native all_reduce; choose an algorithm that uses send and receive");
  }
  EXPECT_THROW(SimulatedLink(*world_, {.latency = -1.0, .gigabits_per_second = 1.0}), Error);
  EXPECT_THROW(SimulatedLink(*world_, {.latency = 0.0, .gigabits_per_second = 0.0}), Error);
}

TEST_F(CollectivesTest, ARingOverLinksTakesItsFormula) {
  const std::int64_t n = 96000;  // 96 ms
  LogicalClock clock;
  SimulatedLink link(*world_, {.latency = 0.01, .gigabits_per_second = 0.032}, clock);
  AlgorithmCommunicator comm(link, AlgorithmChoice(Algorithm::ring), "wire", counter_);
  std::vector<float> buffer = own(n);
  comm.all_reduce(ref(buffer), ReduceOp::sum).host_wait();
  EXPECT_EQ(buffer, expected_sums(n));
  EXPECT_EQ(clock.time, nanoseconds(2 * (size_ - 1) * (10ms + 96ms / size_)));
}

TEST_F(CollectivesTest, TheAutomaticChoiceIsTheSameOnAllRanks) {
  if (size_ > 4) GTEST_SKIP() << "more ranks than this machine has cores to measure with";
  const AlgorithmChoice choice = choose_algorithms(*world_);
  const std::string text = choice.text();
  std::array<char, 1000> of_root{};
  std::copy_n(text.data(), std::min(text.size(), of_root.size() - 1), of_root.data());
  world_->broadcast(TensorRef(of_root.data(), DType::uint8, {1000}), 0).host_wait();
  EXPECT_EQ(of_root.data(), text);
  EXPECT_EQ(AlgorithmChoice::parse(text).text(), text);
  if (rank_ == 0) RecordProperty("choice", text);
}

TEST_F(CollectivesTest, TheAutomaticChoiceOverALinkIsNeverNative) {
  if (size_ < 2) GTEST_SKIP() << "needs two ranks";
  SimulatedLink link(*world_, {.latency = 1e-5, .gigabits_per_second = 100.0});
  EXPECT_FALSE(choose_algorithms(link).uses(Algorithm::native));
}

/// A cost curve with two points, from a latency and a bandwidth.
CostCurve cost_curve(double latency, double gigabits_per_second) {
  constexpr std::int64_t megabyte = 1'000'000;
  CostCurve curve;
  curve.add(0, 1e9 * latency);
  curve.add(megabyte, 1e9 * latency + 8.0 * megabyte / gigabits_per_second);
  return curve;
}

TEST_F(CollectivesTest, TheAutomaticChoiceFollowsTheFormulasOfEachCollective) {
  if (size_ != 4) GTEST_SKIP() << "for four ranks";
  // A step takes 2 ms plus 2 ns per byte. For n bytes a tree broadcasts in 2 steps of n; halving and doubling
  // takes 4 steps that send 1.5 n in total, which saves a tenth of the time above 7.3 MB. Bruck's all_to_all
  // takes 2 steps of n / 2; a ring takes 3 steps of n / 4, which saves a tenth above 8 MB.
  CollectiveCosts costs{cost_curve(2e-3, 4.0), cost_curve(0.0, 1000.0), {}};
  const AlgorithmChoice choice = choose_algorithms(*world_, costs);
  EXPECT_EQ(choice.text(),
            "all_reduce:halving_doubling;reduce_scatter:halving_doubling;all_gather:halving_doubling;"
            "broadcast:tree<8388608,halving_doubling;reduce:tree<8388608,halving_doubling;"
            "all_to_all:tree<8388608,ring");

  // A backend that is fast only at gathering large payloads.
  for (const CommOperation operation : scheduled_operations) {
    const bool is_good = operation == CommOperation::all_gather;
    costs.native.push_back(cost_curve(0.1, is_good ? 400.0 : 0.1));
  }
  const AlgorithmChoice with_native = choose_algorithms(*world_, costs);
  for (const CommOperation operation : scheduled_operations) {
    EXPECT_NE(with_native.of(operation, 256), Algorithm::native) << name_of(operation);
    EXPECT_EQ(with_native.of(operation, 200 << 20) == Algorithm::native,
              operation == CommOperation::all_gather);
  }
}

/// On two ranks the fastest broadcast takes one message. In a sum, naive and tree add all elements at one
/// rank; ring and halving_doubling add half of them at each rank.
TEST_F(CollectivesTest, TheAutomaticChoiceWeighsSumsAndSwitchesForATenth) {
  if (size_ != 2) GTEST_SKIP() << "for two ranks";
  CollectiveCosts costs{cost_curve(1e-5, 1e6), cost_curve(0.0, 1.0), {}};
  const AlgorithmChoice choice = choose_algorithms(*world_, costs);
  const Algorithm of_large = choice.of(CommOperation::all_reduce, 200 << 20);
  EXPECT_TRUE(of_large == Algorithm::ring || of_large == Algorithm::halving_doubling) << choice.text();
  for (const auto& [slower, is_kept] : {std::pair(1.05, true), std::pair(1.3, false)}) {
    costs = {cost_curve(1e-3, 1.0), cost_curve(0.0, 1e6), {}};
    for (std::size_t i = 0; i < std::size(scheduled_operations); ++i)
      costs.native.push_back(cost_curve(slower * 1e-3, 1.0 / slower));
    const AlgorithmChoice with_native = choose_algorithms(*world_, costs);
    for (const std::uint64_t payload : {256U, 200U << 20U})
      EXPECT_EQ(with_native.of(CommOperation::broadcast, payload) == Algorithm::native, is_kept) << slower;
  }
}

// Simulated nodes: `node_of` gives the node of a rank.

struct Nodes {
  std::string name;
  std::function<int(int rank)> node_of;
  int num_nodes;       // on four ranks
  int num_lanes;       // on four ranks
  int most_ranks = 4;  // the most ranks to test with
};
void PrintTo(const Nodes& nodes, std::ostream* out) {
  *out << nodes.name;
}

class HierarchicalTest : public CollectivesTest, public testing::WithParamInterface<Nodes> {
 protected:
  void SetUp() override {
    CollectivesTest::SetUp();
    if (size_ > GetParam().most_ranks) GTEST_SKIP() << "other nodes are enough for so many ranks";
  }
  /// Two levels, with rings along the lanes.
  std::unique_ptr<HierarchicalCommunicator> open() {
    return std::make_unique<HierarchicalCommunicator>(
        world_->split(GetParam().node_of(rank_), rank_),
        std::make_unique<AlgorithmCommunicator>(*world_, AlgorithmChoice(Algorithm::ring), "wire", counter_));
  }
};

void check_all(Communicator& comm, std::int64_t n) {
  const int rank = comm.rank();
  const int size = comm.size();
  const auto sum = [&](std::int64_t i) {
    float result = 0.0F;
    for (int r = 0; r < size; ++r) result += sample(r, i);
    return result;
  };
  const auto own = [&](std::int64_t i) { return sample(rank, i); };
  SCOPED_TRACE(n);

  std::vector<float> buffer = make(n, own);
  comm.all_reduce(ref(buffer), ReduceOp::sum).host_wait();
  ASSERT_EQ(buffer, make(n, sum));

  std::vector<float> input = make(n * size, own);
  std::vector<float> output(static_cast<std::size_t>(n));
  comm.reduce_scatter(ref(input), ref(output), ReduceOp::sum).host_wait();
  ASSERT_EQ(output, make(n, [&](auto i) { return sum(rank * n + i); }));
  ASSERT_EQ(input, make(n * size, own));
  comm.reduce_scatter(ref(input), ref(input).flat(rank * n, n), ReduceOp::sum).host_wait();
  ASSERT_EQ(input, make(n * size, [&](auto i) { return i / n == rank ? sum(i) : own(i); }));

  const auto gathered = [&](auto i) { return sample(static_cast<int>(i / n), i % n); };
  std::vector<float> all(static_cast<std::size_t>(n * size));
  buffer = make(n, own);
  comm.all_gather(ref(buffer), ref(all)).host_wait();
  ASSERT_EQ(all, make(n * size, gathered));
  all = make(n * size, [&](auto i) { return i / n == rank ? own(i % n) : -1.0F; });
  comm.all_gather(ref(all).flat(rank * n, n), ref(all)).host_wait();
  ASSERT_EQ(all, make(n * size, gathered));

  for (const int root : {0, size / 2, size - 1}) {
    buffer = make(n, own);
    comm.broadcast(ref(buffer), root).host_wait();
    ASSERT_EQ(buffer, make(n, [&](auto i) { return sample(root, i); }));
    buffer = make(n, own);
    comm.reduce(ref(buffer), ReduceOp::sum, root).host_wait();
    ASSERT_EQ(buffer, rank == root ? make(n, sum) : make(n, own));
  }

  input = make(n * size, own);
  comm.all_to_all(ref(input), ref(all)).host_wait();
  ASSERT_EQ(all, make(n * size, [&](auto i) { return sample(static_cast<int>(i / n), rank * n + i % n); }));
}

TEST_P(HierarchicalTest, GivesTheResultOfEveryOperation) {
  const auto comm = open();
  if (size_ == 4) {
    EXPECT_EQ(comm->num_nodes(), GetParam().num_nodes);
    EXPECT_EQ(comm->num_lanes(), GetParam().num_lanes);
  }
  for (const std::int64_t n : {0, 1, 5, 1000}) check_all(*comm, n);
}

TEST_P(HierarchicalTest, SplitsInBothLevels) {
  const auto comm = open();
  const auto part = comm->split(rank_ % 2, -rank_);
  EXPECT_EQ(part->size(), (size_ + 1 - rank_ % 2) / 2);
  EXPECT_EQ(part->rank(), part->size() - 1 - rank_ / 2);
  check_all(*part, 100);
}

TEST_P(HierarchicalTest, AllReduceIsBitwiseTheSameEverywhere) {
  const auto comm = open();
  std::vector<float> values = make(10007, [&](auto i) {
    return std::sin(static_cast<float>(i + 1) * 0.37F * static_cast<float>(rank_ + 1)) * 1e3F;
  });
  comm->all_reduce(ref(values), ReduceOp::sum).host_wait();
  std::vector<float> of_root = values;
  world_->broadcast(ref(of_root), 0).host_wait();
  EXPECT_EQ(std::memcmp(values.data(), of_root.data(), values.size() * sizeof(float)), 0);
}

TEST_P(HierarchicalTest, DifferentOperationsAreUnderWayAtOnce) {
  const auto comm = open();
  const ProgressThread progress(*comm);
  const std::int64_t n = 3001;
  for (int repetition = 0; repetition < 5; ++repetition) {
    std::vector<float> reduced = own(n);
    std::vector<float> input = own(n * size_);
    std::vector<float> scattered(static_cast<std::size_t>(n));
    std::vector<float> part = own(n);
    std::vector<float> gathered(input.size());
    std::vector<float> sent = own(n);
    const int root = repetition % size_;
    Request requests[] = {comm->all_reduce(ref(reduced), ReduceOp::sum),
                          comm->reduce_scatter(ref(input), ref(scattered), ReduceOp::sum),
                          comm->all_gather(ref(part), ref(gathered)), comm->broadcast(ref(sent), root)};
    for (int k = 0; k < 4; ++k) requests[(k + rank_) % 4].host_wait();
    ASSERT_EQ(reduced, expected_sums(n));
    ASSERT_EQ(scattered, expected_sums(n, rank_ * n));
    ASSERT_EQ(gathered, make(n * size_, [&](auto i) { return sample(static_cast<int>(i / n), i % n); }));
    ASSERT_EQ(sent, make(n, [&](auto i) { return sample(root, i); }));
  }
}

TEST_P(HierarchicalTest, WaitsInAnyOrderOnCommunicatorsAndTheirSplits) {
  const auto comm = open();
  const auto part = comm->split(rank_ / 2, rank_);
  const std::int64_t n = 3001;
  for (int repetition = 0; repetition < 5; ++repetition) {
    std::vector<float> reduced = own(n);
    std::vector<float> of_part = own(n);
    std::vector<float> input = own(n * size_);
    std::vector<float> exchanged(input.size());
    Request requests[] = {comm->all_reduce(ref(reduced), ReduceOp::sum),
                          part->all_reduce(ref(of_part), ReduceOp::sum),
                          comm->all_to_all(ref(input), ref(exchanged))};
    for (int k = 0; k < 3; ++k) requests[(k + rank_) % 3].host_wait();
    ASSERT_EQ(reduced, expected_sums(n));
    ASSERT_EQ(of_part, make(n, [&](auto i) {
                const int first = rank_ / 2 * 2;
                return sample(first, i) + (first + 1 < size_ ? sample(first + 1, i) : 0.0F);
              }));
    ASSERT_EQ(exchanged,
              make(n * size_, [&](auto i) { return sample(static_cast<int>(i / n), rank_ * n + i % n); }));
  }
}

TEST_P(HierarchicalTest, SpreadsTheTrafficBetweenNodesOverTheLanes) {
  const auto comm = open();
  const std::int64_t nodes = comm->num_nodes();
  const std::int64_t n = 720 * nodes * comm->num_lanes();
  std::vector<float> buffer = own(n);
  const std::uint64_t before = counter_.axis("wire").payload_bytes(CommOperation::send);
  comm->all_reduce(ref(buffer), ReduceOp::sum).host_wait();
  const std::uint64_t sent = counter_.axis("wire").payload_bytes(CommOperation::send) - before;
  const int own_node = GetParam().node_of(rank_);
  int index = 0;
  for (int r = 0; r < rank_; ++r) index += GetParam().node_of(r) == own_node ? 1 : 0;
  const std::int64_t per_lane = 4 * 2 * (nodes - 1) * n / comm->num_lanes() / nodes;
  EXPECT_EQ(sent, static_cast<std::uint64_t>(index < comm->num_lanes() ? per_lane : 0));
}

INSTANTIATE_TEST_SUITE_P(
    Nodes, HierarchicalTest,
    testing::Values(Nodes{"one_of_all", [](int) { return 0; }, 1, 4},
                    Nodes{"each_its_own", [](int rank) { return rank; }, 4, 1},
                    Nodes{"two_and_two", [](int rank) { return rank / 2; }, 2, 2},
                    Nodes{"three_and_one", [](int rank) { return rank / 3; }, 2, 1, 8},
                    Nodes{"one_one_and_two", [](int rank) { return std::min(rank, 2); }, 3, 1},
                    Nodes{"interleaved", [](int rank) { return rank % 2; }, 2, 2},
                    Nodes{"interleaved_three_and_one", [](int rank) { return rank == 1 ? 0 : 1; }, 2, 1}),
    [](const auto& nodes) { return nodes.param.name; });

}  // namespace
}  // namespace mylos
