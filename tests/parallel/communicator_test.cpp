// SPDX-License-Identifier: BSD-3-Clause
// Every operation of the self, MPI and shm backends, and of the layers over shm, for each type that it takes,
// against values computed here.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "backends/comm_mpi/mpi_communicator.hpp"
#include "core/memory/device_buffer.hpp"
#include "parallel/collectives/algorithm_communicator.hpp"
#include "parallel/collectives/hierarchical.hpp"
#include "tests/parallel/samples.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

/// A device whose pointers the host cannot dereference: a backend that does not stage its buffers ends with
/// SIGSEGV.
class FarDevice final : public ComputeBackend {
 public:
  std::string description() const override { return "memory that the host cannot reach"; }
  Window allocate(std::size_t bytes, const char* /*label*/) override {
    const std::size_t begin = memory_.size();
    memory_.resize(begin + bytes + 64);
    return {reinterpret_cast<void*>(base + begin), [](void* /*owned*/) {}};
  }
  Window allocate_host(std::size_t /*bytes*/) override { fail(ExitCode::internal, "no host memory here"); }
  void copy_to_device(const void* host, void* device, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(at(device), host, bytes);
  }
  void copy_to_host(const void* device, void* host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(host, at(device), bytes);
  }
  void copy(const void* from, void* to, std::size_t bytes) override { std::memmove(at(to), at(from), bytes); }
  bool host_accessible() const override { return false; }
  void synchronize() override {}
  Event create_event() override { return {}; }
  void record(const Event& /*event*/) override {}
  void host_wait(const Event& /*event*/) override {}
  double seconds_between(const Event& /*begin*/, const Event& /*end*/) override { return 0.0; }
  void begin_range(const char* /*name*/) override {}
  void end_range() override {}
  std::size_t device_bytes_in_use() const override { return 0; }
  void* native_stream() override { return nullptr; }

 private:
  static constexpr std::uintptr_t base = 64;  // the device's addresses are low ones, which are not mapped

  std::byte* at(const void* device) { return &memory_.at(reinterpret_cast<std::uintptr_t>(device) - base); }

  std::vector<std::byte> memory_;
};

struct Backend {
  std::string name;
  bool far;  // buffers in a FarDevice
  std::function<std::unique_ptr<Communicator>(ComputeBackend*)> open;
  int last_tag = 32765;
};
void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

std::unique_ptr<Communicator> open_in_pieces(ComputeBackend* compute) {
  return comm_mpi::MpiCommunicator::duplicate(MPI_COMM_WORLD, {.compute = compute, .max_count = 3000});
}

/// Collectives by `algorithm` over the sends and receives of comm_shm.
Backend algorithm_backend(const std::string& algorithm) {
  const auto open = [algorithm](ComputeBackend* /*compute*/) -> std::unique_ptr<Communicator> {
    static TrafficCounter counter;
    return std::make_unique<AlgorithmCommunicator>(open_communicator("shm"),
                                                   AlgorithmChoice::parse(algorithm), "world wire", counter);
  };
  return {"shm_" + algorithm, false, open, AlgorithmCommunicator::last_user_tag};
}

/// Two levels, with even and odd ranks as the nodes.
std::unique_ptr<Communicator> open_hierarchical(ComputeBackend* /*compute*/) {
  std::unique_ptr<Communicator> flat = open_communicator("shm");
  std::unique_ptr<Communicator> node = flat->split(flat->rank() % 2, 0);
  return std::make_unique<HierarchicalCommunicator>(std::move(node), std::move(flat));
}

/// Elements of T, in host memory or in a FarDevice.
template <class T>
class Buffer {
 public:
  Buffer(ComputeBackend* device, const std::vector<T>& values)
      : device_(device), host_(values), count_(static_cast<std::int64_t>(values.size())) {
    if (device_ == nullptr) return;
    far_ = device_->allocate(values.size() * sizeof(T), "test");
    device_->copy_to_device(values.data(), far_.get(), values.size() * sizeof(T));
  }
  TensorRef ref() { return {device_ != nullptr ? far_.get() : host_.data(), dtype_of<T>(), {count_}}; }
  const std::vector<T>& values() {
    if (device_ != nullptr) device_->copy_to_host(far_.get(), host_.data(), host_.size() * sizeof(T));
    return host_;
  }

 private:
  ComputeBackend* device_;
  std::vector<T> host_;
  std::int64_t count_;
  Window far_;
};

constexpr std::int64_t counts[] = {0, 1, 5, 1000, 100003};

template <class T>
std::vector<T> make(std::int64_t n, const std::function<int(std::int64_t)>& value) {
  std::vector<T> result(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) result[static_cast<std::size_t>(i)] = element<T>(value(i));
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class Function>
void for_reduced_types(Function&& function) {
  function(float{});
  function(bf16{});
  function(fp16{});
  function(std::int32_t{});
  function(std::int64_t{});
}

template <class Function>
void for_all_types(Function&& function) {
  for_reduced_types(function);
  function(std::uint8_t{});
}

class CommunicatorTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    int ranks = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (GetParam().name.starts_with("self") && ranks > 1) GTEST_SKIP() << "self is for one rank";
    if (GetParam().far) device_ = std::make_unique<FarDevice>();
    handle_ = GetParam().open(device_.get());
    rank_ = comm().rank();
    size_ = comm().size();
    ASSERT_EQ(size_, ranks);
  }

  Communicator& comm() { return *handle_; }
  template <class T>
  Buffer<T> buffer(const std::vector<T>& values) {
    return {device_.get(), values};
  }
  /// The reduction of sample(r, i) over the ranks.
  int reduced(std::int64_t i, ReduceOp op) const {
    int result = sample(0, i);
    for (int r = 1; r < size_; ++r) {
      const int next = sample(r, i);
      result = op == ReduceOp::sum   ? result + next
               : op == ReduceOp::max ? std::max(result, next)
                                     : std::min(result, next);
    }
    return result;
  }

  std::unique_ptr<FarDevice> device_;
  std::unique_ptr<Communicator> handle_;
  int rank_ = 0;
  int size_ = 1;
};

constexpr ReduceOp reductions[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min};

TEST_P(CommunicatorTest, AllReduce) {
  for_reduced_types([&]<class T>(T) {
    for (const std::int64_t n : counts) {
      for (const ReduceOp op : reductions) {
        auto data = buffer(make<T>(n, [&](auto i) { return sample(rank_, i); }));
        comm().all_reduce(data.ref(), op).host_wait();
        ASSERT_TRUE(same_bits(data.values(), make<T>(n, [&](auto i) { return reduced(i, op); })));
      }
    }
  });
}

TEST_P(CommunicatorTest, ReduceScatter) {
  for_reduced_types([&]<class T>(T) {
    for (const std::int64_t n : counts) {
      for (const ReduceOp op : reductions) {
        auto input = buffer(make<T>(n * size_, [&](auto i) { return sample(rank_, i); }));
        auto output = buffer(std::vector<T>(static_cast<std::size_t>(n)));
        comm().reduce_scatter(input.ref(), output.ref(), op).host_wait();
        ASSERT_TRUE(
            same_bits(output.values(), make<T>(n, [&](auto i) { return reduced(rank_ * n + i, op); })));
      }
    }
  });
}

TEST_P(CommunicatorTest, ReduceScatterWithinTheInput) {
  const std::int64_t n = 1000;
  auto input = buffer(make<float>(n * size_, [&](auto i) { return sample(rank_, i); }));
  comm().reduce_scatter(input.ref(), input.ref().flat(rank_ * n, n), ReduceOp::sum).host_wait();
  const std::vector<float> expected = make<float>(
      n * size_, [&](auto i) { return i / n == rank_ ? reduced(i, ReduceOp::sum) : sample(rank_, i); });
  EXPECT_TRUE(same_bits(input.values(), expected));
}

TEST_P(CommunicatorTest, AllGather) {
  for_all_types([&]<class T>(T) {
    for (const std::int64_t n : counts) {
      const auto expected =
          make<T>(n * size_, [&](auto i) { return sample(static_cast<int>(i / n), i % n); });
      auto input = buffer(make<T>(n, [&](auto i) { return sample(rank_, i); }));
      auto output = buffer(std::vector<T>(expected.size()));
      comm().all_gather(input.ref(), output.ref()).host_wait();
      ASSERT_TRUE(same_bits(output.values(), expected));

      auto in_place =
          buffer(make<T>(n * size_, [&](auto i) { return i / n == rank_ ? sample(rank_, i % n) : 0; }));
      comm().all_gather(in_place.ref().flat(rank_ * n, n), in_place.ref()).host_wait();
      ASSERT_TRUE(same_bits(in_place.values(), expected));
    }
  });
}

TEST_P(CommunicatorTest, Broadcast) {
  for_all_types([&]<class T>(T) {
    for (const std::int64_t n : counts) {
      for (int root = 0; root < size_; ++root) {
        auto data = buffer(make<T>(n, [&](auto i) { return sample(rank_, i); }));
        comm().broadcast(data.ref(), root).host_wait();
        ASSERT_TRUE(same_bits(data.values(), make<T>(n, [&](auto i) { return sample(root, i); })));
      }
    }
  });
}

TEST_P(CommunicatorTest, ReduceLeavesOtherRanksAlone) {
  for_reduced_types([&]<class T>(T) {
    for (const std::int64_t n : counts) {
      for (const ReduceOp op : reductions) {
        const int root = size_ - 1;
        auto data = buffer(make<T>(n, [&](auto i) { return sample(rank_, i); }));
        comm().reduce(data.ref(), op, root).host_wait();
        ASSERT_TRUE(same_bits(data.values(), make<T>(n, [&](auto i) {
                                return rank_ == root ? reduced(i, op) : sample(rank_, i);
                              })));
      }
    }
  });
}

TEST_P(CommunicatorTest, AllToAll) {
  for_all_types([&]<class T>(T) {
    for (const std::int64_t n : counts) {
      auto input = buffer(make<T>(n * size_, [&](auto i) { return sample(rank_, i); }));
      auto output = buffer(std::vector<T>(static_cast<std::size_t>(n * size_)));
      comm().all_to_all(input.ref(), output.ref()).host_wait();
      ASSERT_TRUE(same_bits(output.values(), make<T>(n * size_, [&](auto i) {
                              return sample(static_cast<int>(i / n), rank_ * n + i % n);
                            })));
    }
  });
}

TEST_P(CommunicatorTest, AllToAllOfUnevenParts) {
  // Rank r sends 100 r + 7 p elements to rank p, except that odd ranks send none to themselves. The output
  // has room to spare.
  const auto part = [](int from, int to) -> std::int64_t {
    return from == to && from % 2 == 1 ? 0 : 100 * from + 7 * to;
  };
  for_all_types([&]<class T>(T) {
    std::vector<std::int64_t> send_counts;
    std::vector<std::int64_t> recv_counts;
    std::vector<T> sent;
    std::vector<T> expected;
    for (int peer = 0; peer < size_; ++peer) {
      send_counts.push_back(part(rank_, peer));
      recv_counts.push_back(part(peer, rank_));
      for (std::int64_t i = 0; i < part(rank_, peer); ++i)
        sent.push_back(element<T>(sample(rank_ + peer, i)));
      for (std::int64_t i = 0; i < part(peer, rank_); ++i)
        expected.push_back(element<T>(sample(rank_ + peer, i)));
    }
    expected.insert(expected.end(), 3, element<T>(5));
    auto input = buffer(sent);
    auto output = buffer(std::vector<T>(expected.size(), element<T>(5)));
    comm().all_to_all_v(input.ref(), send_counts, output.ref(), recv_counts).host_wait();
    ASSERT_TRUE(same_bits(output.values(), expected));
  });
}

TEST_P(CommunicatorTest, SendAndRecvMatchByTag) {
  const int next = (rank_ + 1) % size_;
  const int previous = (rank_ + size_ - 1) % size_;
  for_all_types([&]<class T>(T) {
    for (const std::int64_t n : counts) {
      auto first = buffer(make<T>(n, [&](auto i) { return sample(rank_, i); }));
      auto second = buffer(make<T>(n, [&](auto i) { return sample(rank_ + 1, i); }));
      auto from_first = buffer(std::vector<T>(static_cast<std::size_t>(n)));
      auto from_second = buffer(std::vector<T>(static_cast<std::size_t>(n)));
      Request sending_first = comm().send(first.ref(), next, 1);
      Request sending_second = comm().send(second.ref(), next, GetParam().last_tag);
      Request receiving_second = comm().recv(from_second.ref(), previous, GetParam().last_tag);
      Request receiving_first = comm().recv(from_first.ref(), previous, 1);
      sending_first.host_wait();
      sending_second.host_wait();
      receiving_first.wait();
      receiving_second.wait();
      ASSERT_TRUE(same_bits(from_first.values(), make<T>(n, [&](auto i) { return sample(previous, i); })));
      ASSERT_TRUE(
          same_bits(from_second.values(), make<T>(n, [&](auto i) { return sample(previous + 1, i); })));
    }
  });
}

TEST_P(CommunicatorTest, ManyOperationsUnderWay) {
  std::vector<Buffer<float>> buffers;
  for (int k = 0; k < 20; ++k)
    buffers.push_back(buffer(make<float>(1000 + k, [&](auto i) { return sample(rank_, i + k); })));
  std::vector<Request> requests;
  for (auto& each : buffers) requests.push_back(comm().all_reduce(each.ref(), ReduceOp::sum));
  for (auto request = requests.rbegin(); request != requests.rend(); ++request) request->host_wait();
  for (int k = 0; k < 20; ++k) {
    EXPECT_TRUE(same_bits(buffers[static_cast<std::size_t>(k)].values(),
                          make<float>(1000 + k, [&](auto i) { return reduced(i + k, ReduceOp::sum); })));
  }
}

TEST_P(CommunicatorTest, AllReduceIsBitwiseTheSameEverywhereAndEveryTime) {
  const std::int64_t n = 100003;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    values[static_cast<std::size_t>(i)] =
        std::sin(static_cast<float>(i + 1) * 0.37F * static_cast<float>(rank_ + 1)) * 1e3F;
  }
  std::vector<float> first;
  for (int repetition = 0; repetition < 5; ++repetition) {
    auto data = buffer(values);
    comm().all_reduce(data.ref(), ReduceOp::sum).host_wait();
    if (first.empty()) first = data.values();
    ASSERT_TRUE(same_bits(data.values(), first));
  }
  auto of_root = buffer(first);
  comm().broadcast(of_root.ref(), 0).host_wait();
  EXPECT_TRUE(same_bits(of_root.values(), first));
}

TEST_P(CommunicatorTest, MaximumAndMinimumDoNotDependOnTheOrder) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int bad = 0; bad < size_; ++bad) {
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
      auto data = buffer(std::vector<float>{rank_ == bad ? nan : 1.0F, rank_ == bad ? 0.0F : -0.0F});
      comm().all_reduce(data.ref(), op).host_wait();
      EXPECT_TRUE(std::isnan(data.values()[0]));
      EXPECT_EQ(std::signbit(data.values()[1]), op == ReduceOp::min && size_ > 1);
      auto brain = buffer(std::vector<bf16>{bf16(rank_ == bad ? nan : 1.0F)});
      comm().all_reduce(brain.ref(), op).host_wait();
      EXPECT_TRUE(std::isnan(static_cast<float>(brain.values()[0])));
      auto half = buffer(std::vector<fp16>{fp16(rank_ == bad ? nan : 1.0F)});
      comm().all_reduce(half.ref(), op).host_wait();
      EXPECT_TRUE(std::isnan(static_cast<float>(half.values()[0])));
    }
  }
}

TEST_P(CommunicatorTest, SplitOrdersByKey) {
  const auto part = comm().split(rank_ % 2, -rank_);
  EXPECT_EQ(part->size(), (size_ + 1 - rank_ % 2) / 2);
  EXPECT_EQ(part->rank(), part->size() - 1 - rank_ / 2);
  auto own = buffer(std::vector<std::int32_t>{rank_});
  auto all = buffer(std::vector<std::int32_t>(static_cast<std::size_t>(part->size())));
  part->all_gather(own.ref(), all.ref()).host_wait();
  for (int r = 0; r < part->size(); ++r) {
    EXPECT_EQ(all.values()[static_cast<std::size_t>(r)], rank_ % 2 + 2 * (part->size() - 1 - r));
  }
}

TEST_P(CommunicatorTest, BarrierWaitsForAll) {
  for (int i = 0; i < 50; ++i) comm().barrier();
}

TEST(SelfCommunicator, WaitingForAMessageThatNobodySendsThrows) {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks > 1) GTEST_SKIP() << "self is for one rank";
  const std::unique_ptr<Communicator> self = open_communicator("self");
  float value = 0.0F;
  Request request = self->recv(TensorRef(&value, DType::fp32, {1}), 0, 3);
  EXPECT_THROW(request.host_wait(), Error);
}

TEST(AlgorithmCommunicator, LeavesMemoryThatTheHostCannotReachToTheBackend) {
  const std::unique_ptr<Communicator> world = open_communicator("mpi");
  TrafficCounter counter;
  FarDevice device;
  EXPECT_NO_THROW(
      AlgorithmCommunicator(*world, AlgorithmChoice(Algorithm::native), "wire", counter, &device));
  EXPECT_THROW(AlgorithmCommunicator(*world, AlgorithmChoice(Algorithm::ring), "wire", counter, &device),
               Error);
  EXPECT_THROW(HierarchicalCommunicator(*world, *world, &device), Error);
}

TEST(NodesOfShm, LeavesTheComputeBackendToTheLayerThatJoinsNodes) {
  ParamValues deck;
  deck.set("comm.ranks_per_node", std::int64_t{1});
  FarDevice device;
  const std::unique_ptr<Communicator> all = open_communicator("shm", &device);
  const std::unique_ptr<Communicator> node = open_communicator("shm", &device, &deck);
  // A communicator that knows the device has no windows, because the host cannot reach the buffers.
  EXPECT_EQ(all->allocate(64), nullptr);
  EXPECT_EQ(node->allocate(64) == nullptr, node->size() == all->size());
}

/// An address of a FarDevice that reached MPI would end the test.
TEST(GpuAwareMpi, IsGivenHostMemoryForWhatItCannotReduceOnADevice) {
  FarDevice device;
  const auto world =
      comm_mpi::MpiCommunicator::duplicate(MPI_COMM_WORLD, {.compute = &device, .gpu_aware = true});
  const int ranks = world->size();
  const int rank = world->rank();
  Buffer<float> value(&device, {static_cast<float>(rank)});
  world->all_reduce(value.ref(), ReduceOp::max).host_wait();
  EXPECT_EQ(value.values()[0], static_cast<float>(ranks - 1));
  Buffer<bf16> narrow(&device, {bf16(1.0F)});
  world->reduce(narrow.ref(), ReduceOp::sum, 0).host_wait();
  if (rank == 0) {
    EXPECT_EQ(static_cast<float>(narrow.values()[0]), static_cast<float>(ranks));
  }
  Buffer<float> parts(&device, std::vector<float>(static_cast<std::size_t>(ranks), 1.0F));
  world->reduce_scatter(parts.ref(), parts.ref().flat(rank, 1), ReduceOp::sum).host_wait();
  EXPECT_EQ(parts.values()[static_cast<std::size_t>(rank)], static_cast<float>(ranks));
}

/// The bytes of comm_shm's memory that this process maps.
std::size_t mapped_bytes() {
  std::ifstream maps("/proc/self/maps");
  std::size_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:mylos") == std::string::npos) continue;
    bytes += std::stoul(line.substr(line.find('-') + 1), nullptr, 16) - std::stoul(line, nullptr, 16);
  }
  return bytes;
}

TEST(DeviceBuffer, FreesItsWindowThroughEveryLayer) {
  constexpr std::size_t bytes = 1 << 20;
  const std::unique_ptr<Communicator> shm = open_communicator("shm");
  const std::unique_ptr<Communicator> world = open_communicator("mpi");
  HierarchicalCommunicator joined(*shm, *world);
  FarDevice device;
  MemoryLedger ledger;
  const std::size_t before = mapped_bytes();
  for (Communicator* comm : {shm.get(), static_cast<Communicator*>(&joined)}) {
    for (int visit = 0; visit < 20; ++visit) {
      DeviceBuffer buffer(device, ledger, MemoryCategory::gradients, bytes, "test", *comm);
      EXPECT_GE(mapped_bytes(), before + bytes * static_cast<std::size_t>(comm->size()));
      EXPECT_EQ(ledger.current(), bytes);
      auto* data = static_cast<std::int32_t*>(buffer.data());
      ASSERT_EQ(*data, 0);
      *data = 1 + comm->rank();
      comm->all_reduce(TensorRef(data, DType::int32, {bytes / sizeof *data}), ReduceOp::max).host_wait();
      EXPECT_EQ(*data, comm->size());
      DeviceBuffer moved = std::move(buffer);
      EXPECT_EQ(moved.data(), data);
    }
    EXPECT_EQ(ledger.current(), 0U);
    EXPECT_EQ(mapped_bytes(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backends, CommunicatorTest,
    testing::Values(
        Backend{"self", false, [](ComputeBackend* c) { return open_communicator("self", c); }},
        Backend{"self_far", true, [](ComputeBackend* c) { return open_communicator("self", c); }},
        Backend{"mpi", false, [](ComputeBackend* c) { return open_communicator("mpi", c); }},
        Backend{"mpi_staged", true, [](ComputeBackend* c) { return open_communicator("mpi", c); }},
        Backend{"mpi_in_pieces", false, open_in_pieces}, algorithm_backend("naive"),
        algorithm_backend("tree"), algorithm_backend("ring"), algorithm_backend("halving_doubling"),
        Backend{"shm_hierarchical", false, open_hierarchical},
        Backend{"shm", false, [](ComputeBackend* c) { return open_communicator("shm", c); }},
        Backend{"shm_staged", true, [](ComputeBackend* c) { return open_communicator("shm", c); }}),
    [](const auto& backend) { return backend.param.name; });

}  // namespace
}  // namespace mylos
