// SPDX-License-Identifier: BSD-3-Clause
// The traffic counters against formulas, and what the flight recorder shows.
#include "parallel/health/traffic.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "parallel/health/flight_recorder.hpp"
#include "tests/support/gather_over.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

TEST(Traffic, CountsCallsAndPayloadOfEveryOperationInEveryType) {
  const std::unique_ptr<Communicator> world = open_communicator("mpi");
  const std::int64_t n = 10;
  const std::int64_t p = world->size();
  const int next = (world->rank() + 1) % world->size();
  const int previous = (world->rank() + world->size() - 1) % world->size();
  const std::vector<std::int64_t> part_counts(static_cast<std::size_t>(p), 2);
  // Zeros of any type of up to eight bytes.
  std::vector<std::int64_t> small(static_cast<std::size_t>(n));
  std::vector<std::int64_t> large(static_cast<std::size_t>(n * p));
  std::vector<std::int64_t> other(large.size());
  for (const auto& [dtype, width] : {std::pair(DType::fp32, 4), std::pair(DType::bf16, 2),
                                     std::pair(DType::fp16, 2), std::pair(DType::int64, 8)}) {
    SCOPED_TRACE(name_of(dtype));
    TrafficCounter counter;
    CountedCommunicator comm(*world, "data", counter, nullptr);
    const TensorRef part(small.data(), dtype, {n});
    const TensorRef whole(large.data(), dtype, {n * p});
    const TensorRef result(other.data(), dtype, {n * p});

    for (int i = 0; i < 3; ++i) comm.all_reduce(part, ReduceOp::sum).host_wait();
    comm.all_reduce(part.flat(0, 3), ReduceOp::max).host_wait();
    comm.reduce_scatter(whole, part, ReduceOp::sum).host_wait();
    comm.all_gather(part, whole).host_wait();
    comm.broadcast(part, 0).host_wait();
    comm.reduce(part, ReduceOp::sum, 0).host_wait();
    comm.all_to_all(whole, result).host_wait();
    comm.all_to_all_v(whole, part_counts, result, part_counts).host_wait();
    Request sending = comm.send(part, next, 0);
    comm.recv(result.flat(0, n), previous, 0).host_wait();
    sending.host_wait();
    comm.barrier();

    const auto bytes = [&](std::int64_t elements) { return static_cast<std::uint64_t>(width * elements); };
    const std::map<CommOperation, std::pair<std::uint64_t, std::uint64_t>> expected = {
        {CommOperation::all_reduce, {4, bytes(3 * n + 3)}},
        {CommOperation::reduce_scatter, {1, bytes(n * p)}},
        {CommOperation::all_gather, {1, bytes(n * p)}},
        {CommOperation::broadcast, {1, bytes(n)}},
        {CommOperation::reduce, {1, bytes(n)}},
        {CommOperation::all_to_all, {1, bytes(n * p)}},
        {CommOperation::all_to_all_v, {1, bytes(2 * p)}},
        {CommOperation::send, {1, bytes(n)}},
        {CommOperation::recv, {1, bytes(n)}},
        {CommOperation::barrier, {1, 0}},
    };
    const std::vector<TrafficRow> table = counter.table();
    EXPECT_EQ(table.size(), expected.size());
    for (const TrafficRow& row : table) {
      EXPECT_EQ(row.axis, "data");
      EXPECT_EQ(row.calls, expected.at(row.operation).first) << name_of(row.operation);
      EXPECT_EQ(row.payload_bytes, expected.at(row.operation).second) << name_of(row.operation);
    }
  }
}

TEST(Traffic, KeepsAxesApart) {
  const std::unique_ptr<Communicator> world = open_communicator("mpi");
  TrafficCounter counter;
  CountedCommunicator data(*world, "data", counter, nullptr);
  CountedCommunicator tensor(world->split(0, world->rank()), "tensor", counter, nullptr);
  data.barrier();
  data.barrier();
  tensor.barrier();
  EXPECT_EQ(counter.axis("data").calls(CommOperation::barrier), 2U);
  EXPECT_EQ(counter.axis("tensor").calls(CommOperation::barrier), 1U);
}

/// The ranks of this node according to MPI.
std::vector<int> ranks_of_node() {
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(node, &size);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, node);
  MPI_Comm_free(&node);
  return ranks;
}

TEST(FlightRecorder, ShowsTheOperationsOfEveryRankOfTheNode) {
  const std::unique_ptr<Communicator> world = open_communicator("mpi");
  FlightRecorder recorder(world->rank(), test::gather_over(*world));
  TrafficCounter counter;
  CountedCommunicator comm(*world, "data", counter, &recorder);
  recorder.set_phase(7, "backward");
  const std::uint64_t early = recorder.begin(CallKind::io, "fsync", std::string(100, 'x') + "/weights.h5", 0);
  for (int i = 0; i < 100; ++i) recorder.complete(recorder.begin(CallKind::io, "read", "train.bin", 8));
  std::array<float, 2> values{};
  const TensorRef buffer(values.data(), DType::fp32, {2});
  comm.barrier();
  for (int i = 0; i < 100; ++i) comm.all_reduce(buffer, ReduceOp::sum).host_wait();
  const std::uint64_t open = recorder.begin(CallKind::collective, "broadcast", "tensor", 5);
  world->barrier();

  std::vector<RankFlight> node;
  recorder.read_node(node);
  const std::vector<int> ranks = ranks_of_node();
  ASSERT_EQ(node.size(), ranks.size());
  for (std::size_t r = 0; r < node.size(); ++r) {
    EXPECT_EQ(node[r].rank, ranks[r]);
    EXPECT_EQ(node[r].step, 7);
    EXPECT_STREQ(node[r].phase.data(), "backward");
    EXPECT_FALSE(node[r].finished);
    const auto entries = node[r].entries();
    ASSERT_EQ(entries.size(), 2 * FlightPage::Ring::size);
    EXPECT_EQ(entries.front().record.begin_ns, node[r].open_operation(CallKind::io)->record.begin_ns);
    EXPECT_EQ(entries.back().record.number, 102U);  // of collectives
    EXPECT_STREQ(node[r].open_operation(CallKind::io)->record.object.data(),
                 (std::string(object_bytes - 12, 'x') + "/weights.h5").c_str());
    const RankFlight::Entry* entry = node[r].open_operation(CallKind::collective);
    ASSERT_NE(entry, nullptr);
    EXPECT_STREQ(entry->record.operation.data(), "broadcast");
    EXPECT_STREQ(entry->record.object.data(), "tensor");
    EXPECT_EQ(entry->record.bytes, 5U);
    const OperationRecord& done = entries[entries.size() - 2].record;
    EXPECT_STREQ(done.operation.data(), "all_reduce");
    EXPECT_EQ(done.bytes, 8U);
  }
  world->barrier();
  recorder.complete(open);
  recorder.complete(early);
  recorder.read_node(node);
  const auto own = std::ranges::find(node, world->rank(), &RankFlight::rank);
  ASSERT_NE(own, node.end());
  EXPECT_EQ(own->open_operation(), nullptr);
}

TEST(FlightRecorder, ShowsARankOfAnotherNodeAsOfItsLastMessage) {
  const std::unique_ptr<Communicator> world = open_communicator("mpi");
  FlightRecorder recorder(world->rank(), test::gather_over(*world));
  std::set<int> leaders;
  for (const std::string& rank : test::gather_over (*world)(std::to_string(ranks_of_node().front())))
    leaders.insert(std::stoi(rank));
  EXPECT_EQ(recorder.leaders(), std::vector(leaders.begin(), leaders.end()));
  std::vector<RankFlight> node;
  recorder.read_node(node);
  const std::size_t here = node.size();
  recorder.set_phase(3, "forward");
  recorder.begin(CallKind::collective, "barrier", "data", 0);
  FlightRecorder::Message message{};
  recorder.write_message(message);
  recorder.set_phase(4, "later");
  recorder.receive(message, false);
  recorder.read_node(node);
  ASSERT_EQ(node.size(), here + 1);
  EXPECT_TRUE(node.back().on_other_node);
  EXPECT_EQ(node.back().rank, world->rank());
  EXPECT_EQ(node.back().step, 3);
  EXPECT_FALSE(node.back().finished);
  ASSERT_NE(node.back().open_operation(), nullptr);
  EXPECT_STREQ(node.back().open_operation()->record.operation.data(), "barrier");
  // Heartbeats may arrive ahead of a message.
  const std::uint64_t heartbeats = node.back().heartbeats;
  recorder.receive_heartbeats(heartbeats + 2);
  recorder.receive_heartbeats(heartbeats + 1);
  recorder.receive(message, false);
  recorder.read_node(node);
  EXPECT_EQ(node.back().heartbeats, heartbeats + 2);
  recorder.receive(message, true);
  recorder.read_node(node);
  EXPECT_TRUE(node.back().finished);
}

}  // namespace
}  // namespace mylos
