// SPDX-License-Identifier: BSD-3-Clause
// comm_nccl over a stand-in for NCCL: the messages of every schedule meet, with the right payloads.
#include <algorithm>
#include <array>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/comm_nccl/nccl_communicator.hpp"
#include "core/base/join.hpp"
#include "parallel/schedule/messages.hpp"
#include "parallel/schedule/schedule_file.hpp"
#include "tests/nccl_stand_in/stand_in.hpp"
#include "tests/support/seed.hpp"

namespace mylos {
namespace {

using nccl_stand_in::Behaviour;
using testing::HasSubstr;
using testing::IsEmpty;
using enum ActionKind;

/// A backend that has a stream and nothing else.
class StreamBackend final : public ComputeBackend {
 public:
  StreamBackend() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  ~StreamBackend() override { cudaStreamDestroy(stream_); }

  void* native_stream() override { return stream_; }
  cudaStream_t stream() const { return stream_; }
  void synchronize() override {
    if (cudaStreamSynchronize(stream_) != cudaSuccess) missing();
  }

  std::string description() const override { return "a stream"; }
  Allocation allocate(std::size_t /*bytes*/, const char* /*label*/) override { missing(); }
  Allocation allocate_host(std::size_t /*bytes*/) override { missing(); }
  void copy_to_device(const void* /*host*/, void* /*device*/, std::size_t /*bytes*/) override { missing(); }
  void copy_to_host(const void* /*device*/, void* /*host*/, std::size_t /*bytes*/) override { missing(); }
  void copy(const void* /*from*/, void* /*to*/, std::size_t /*bytes*/) override { missing(); }
  bool host_accessible() const override { return false; }
  Event create_event() override { missing(); }
  void record(const Event& /*event*/) override { missing(); }
  void host_wait(const Event& /*event*/) override { missing(); }
  double seconds_between(const Event& /*begin*/, const Event& /*end*/) override { missing(); }
  void begin_range(const char* /*name*/) override {}
  void end_range() override {}

 private:
  [[noreturn]] static void missing() { fail(ExitCode::internal, "the stream fails or cannot do this"); }

  cudaStream_t stream_ = nullptr;
};

/// Passes NCCL's id from thread to thread.
class ThreadBootstrap final : public CallCommunicator {
 public:
  struct Meeting {
    explicit Meeting(int ranks) : size(ranks), arrived(ranks) {}
    int size;
    std::barrier<> arrived;
    const void* data = nullptr;
  };

  ThreadBootstrap(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_.size; }
  void barrier() override { meeting_.arrived.arrive_and_wait(); }
  std::unique_ptr<Communicator> split(int /*color*/, int /*key*/) override { return nullptr; }
  void abort(ExitCode code, const std::string& message) override { throw Error(code, message); }

 private:
  Request start(const CommCall& call) override {
    require(call.operation == CommOperation::broadcast, "the bootstrap of threads only broadcasts");
    if (rank_ == call.peer) meeting_.data = call.input.data;
    barrier();
    if (rank_ != call.peer) std::memcpy(call.input.data, meeting_.data, call.input.bytes());
    barrier();
    return {};
  }

  Meeting& meeting_;
  int rank_;
};

/// Runs `body` with a communicator on each of `ranks` threads. Returns the first problem, or an empty text.
std::string run_with_nccl(int ranks, const Behaviour& behaviour,
                          const std::function<void(Communicator&, StreamBackend&)>& body) {
  ThreadBootstrap::Meeting meeting(ranks);
  return nccl_stand_in::run_on_threads(ranks, behaviour, [&](int rank) {
    ThreadBootstrap bootstrap(meeting, rank);
    StreamBackend backend;
    const auto comm = comm_nccl::NcclCommunicator::create(bootstrap, backend);
    try {
      body(*comm, backend);
    } catch (const std::exception& exception) {  // while the other ranks wait for this one
      nccl_stand_in::report(fmt::format("rank {}: {}", rank, exception.what()));
    }
  });
}

/// What a pass passes on to the next chunk, or back: where it comes from. Gradients are a byte larger.
using Payload = std::array<std::uint8_t, 5>;
/// Direction, micro-batch, and the chunk that makes the tensor.
using Tensor = std::tuple<bool, int, int>;

using Tensors = std::map<Tensor, Payload>;

/// Walks the list of a stage as ModelExecutor does, with passes that check and make payloads.
class StageWalk {
 public:
  StageWalk(const Schedule& schedule, Tensors& tensors, Communicator& stages, StreamBackend& backend,
            bool posts_together)
      : schedule_(schedule),
        tensors_(tensors),
        stages_(stages),
        backend_(backend),
        posts_together_(posts_together) {}

  /// Queues a step, which overwrites the tensors of the one before.
  void run(int step) {
    step_ = step;
    const std::vector<Action>& actions = schedule_.actions;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (is_message(actions[i].kind)) {
        if (posts_together_ && !(i > 0 && is_message(actions[i - 1].kind))) stages_.begin_messages();
        post(actions[i]);
        if (posts_together_ && !(i + 1 < actions.size() && is_message(actions[i + 1].kind)))
          stages_.end_messages();
      } else if (is_of_micro_batch(actions[i].kind)) {
        pass(actions[i]);
      }
    }
    for (Request& request : sends_) request.wait();
    sends_.clear();
    EXPECT_THAT(receives_, IsEmpty());
  }

 private:
  void post(const Action& message) {
    const bool is_forward = message.kind == send_forward || message.kind == receive_forward;
    const bool is_send = is_sent(message.kind);
    const int maker = message.chunk + (is_send ? 0 : is_forward ? -1 : 1);
    const Tensor tensor{is_forward, message.micro_batch, maker};
    const TensorRef buffer(&tensors_[tensor], DType::uint8, {is_forward ? 4 : 5});
    if (is_send) {
      sends_.push_back(stages_.send(buffer, message.peer, 0));
    } else {
      receives_[tensor] = stages_.recv(buffer, message.peer, 0);
    }
  }

  void pass(const Action& pass) {
    const int chunk = pass.chunk;
    const int m = pass.micro_batch;
    if (pass.kind == forward) {
      if (chunk > 0) check({true, m, chunk - 1});
      make({true, m, chunk});
    } else if (pass.kind == backward_weight) {
      check({true, m, chunk});
      check({false, m, chunk});
    } else {
      if (chunk + 1 < schedule_.chunks) check({false, m, chunk + 1});
      check({true, m, chunk});
      make({false, m, chunk});
    }
  }

  Payload payload_of(const Tensor& tensor) const {
    const auto [is_forward, micro_batch, maker] = tensor;
    const auto byte = [](int value) { return static_cast<std::uint8_t>(value); };
    return {byte(micro_batch), byte(maker), byte(is_forward ? 1 : 2), byte(step_), byte(is_forward ? 0 : 3)};
  }
  void make(const Tensor& tensor) {
    nccl_stand_in::launch(backend_.stream(), [&place = tensors_[tensor], payload = payload_of(tensor)] {
      place = payload;
      return std::string();
    });
  }
  void check(const Tensor& tensor) {
    if (const auto received = receives_.find(tensor); received != receives_.end()) {
      received->second.wait();
      receives_.erase(received);
    }
    nccl_stand_in::launch(backend_.stream(), [&place = tensors_[tensor], payload = payload_of(tensor)] {
      if (place == payload) return std::string();
      return fmt::format("a pass needs {} and finds {}", join(payload, " "), join(place, " "));
    });
  }

  const Schedule& schedule_;
  Tensors& tensors_;
  Communicator& stages_;
  StreamBackend& backend_;
  bool posts_together_;
  int step_ = 0;
  std::map<Tensor, Request> receives_;
  std::vector<Request> sends_;
};

/// Two steps of the lists of all stages, the second queued before the first is done.
std::string walk(const std::vector<Schedule>& stages, const Behaviour& behaviour,
                 bool posts_together = true) {
  std::vector<Tensors> tensors(stages.size());  // outlive what a rank that fails has queued
  return run_with_nccl(static_cast<int>(stages.size()), behaviour, [&](Communicator& comm, auto& backend) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    StageWalk own(stages[rank], tensors[rank], comm, backend, posts_together);
    for (const int step : {1, 2}) own.run(step);
    backend.synchronize();
    comm.barrier();
  });
}

const ScheduleKind& kind(std::string_view name) {
  return **std::ranges::find_if(schedules(), [&](const ScheduleKind* one) { return one->name == name; });
}

/// The lists of `scope` as a file whose rows are in the opposite order, so that the last chunk may come
/// first.
std::string reversed_file(std::string_view name, const ScheduleScope& scope) {
  std::vector<Schedule> stages = kind(name).make(scope);
  std::ranges::reverse(stages);
  return schedule_text(stages);
}

/// Calls visit(name, lists) for schedules with the messages of equal or random pass times.
void for_each_schedule(bool random_times, const auto& visit) {
  std::mt19937 engine(test::seed_of_tests());
  std::uniform_real_distribution<double> time(0.0, 1.0);
  for (int stages = 2; stages <= 4; ++stages) {
    for (int micro_batches = 1; micro_batches <= 8; ++micro_batches) {
      const auto visit_one = [&](const char* name, int chunks, const char* in_file) {
        ScheduleScope scope{.micro_batches = micro_batches, .stages = stages, .chunks = chunks};
        for (int chunk = 0; random_times && chunk < scope.num_chunks(); ++chunk)
          scope.times.push_back({.forward = time(engine), .input = time(engine), .weight = time(engine)});
        const std::string file = in_file == nullptr ? "" : reversed_file(in_file, scope);
        scope.file = file;
        visit(fmt::format("{} {}, {} micro-batches, {} stages, {} chunks", name,
                          in_file == nullptr ? "" : in_file, micro_batches, stages, chunks),
              with_messages(kind(name).make(scope), scope.times));
      };
      for (const char* name : {"accumulate", "gpipe", "1f1b", "zero_bubble"}) visit_one(name, 1, nullptr);
      visit_one("zero_bubble_v", 2, nullptr);
      visit_one("file", 2, "zero_bubble_v");
      if (micro_batches % stages != 0) continue;
      for (const int chunks : {2, 3}) visit_one("interleaved", chunks, nullptr);
      visit_one("file", 2, "interleaved");
    }
  }
}

class NcclMessages : public testing::TestWithParam<bool> {
 protected:
  Behaviour next_behaviour() { return {.seed = seed_++, .connects_in_calls = GetParam()}; }

 private:
  std::uint32_t seed_ = test::seed_of_tests();
};

INSTANTIATE_TEST_SUITE_P(NcclMessages, NcclMessages, testing::Bool(),
                         [](const auto& one) { return one.param ? "ConnectedInCalls" : "Connected"; });

TEST_P(NcclMessages, OfEverySchedulesMeet) {
  for (const bool random_times : {false, true}) {
    for_each_schedule(random_times, [&](const std::string& name, const std::vector<Schedule>& stages) {
      EXPECT_EQ(walk(stages, next_behaviour()), "") << name;
    });
  }
}

/// Several steps that overlap, with the beginning and the end of a run, twice.
TEST_P(NcclMessages, OfAsynchronousPipelinesMeet) {
  const std::vector<int> layouts[] = {{1, 1},    {1, 1, 1}, {1, 1, 1, 1}, {2, 1}, {1, 2}, {3, 1},
                                      {2, 1, 1}, {1, 2, 1}, {1, 1, 2},    {2, 2}, {1, 3}};
  for (const std::vector<int>& replicas : layouts) {
    for (const int micro_batches : {6, 12}) {
      const ScheduleScope scope{
          .micro_batches = micro_batches, .stages = static_cast<int>(replicas.size()), .replicas = replicas};
      std::vector<Schedule> lists = kind("pipedream").make(scope);
      for (Schedule& list : lists) list.rules = kind("pipedream").rules(scope);
      EXPECT_EQ(walk(unrolled(with_messages(lists), 2 * micro_batches), next_behaviour()), "")
          << testing::PrintToString(replicas) << ", " << micro_batches;
    }
  }
}

/// Two ranks send to each other first. Posted together, it does not matter which of the messages comes first.
TEST_P(NcclMessages, ThatCrossMeetIfTheyArePostedTogether) {
  std::vector<Schedule> stages = with_messages(kind("1f1b").make({.micro_batches = 4, .stages = 2}));
  for (Schedule& stage : stages) {
    for (auto next = stage.actions.begin(); next != stage.actions.end();) {
      const auto begin = std::find_if(next, stage.actions.end(), [](auto& a) { return is_message(a.kind); });
      next = std::find_if(begin, stage.actions.end(), [](auto& a) { return !is_message(a.kind); });
      std::stable_partition(begin, next, [](const Action& action) { return is_sent(action.kind); });
    }
  }
  EXPECT_EQ(walk(stages, next_behaviour()), "");
  EXPECT_EQ(walk(stages, next_behaviour(), false),
            "rank 0 waits for send of 4 uint8 to rank 1; rank 1 waits for send of 5 uint8 to rank 0");
}

/// Receives right before their passes and sends right after them wait for each other.
TEST_P(NcclMessages, NextToThePassesOfInterleavedListsAreReported) {
  std::vector<Schedule> stages = kind("interleaved").make({.micro_batches = 4, .stages = 2, .chunks = 2});
  for (int stage = 0; stage < 2; ++stage) {
    std::vector<Action> actions;
    for (const Action& pass : stages[static_cast<std::size_t>(stage)].actions) {
      const bool is_forward = pass.kind == forward;
      const auto add = [&](ActionKind kind, int neighbour) {
        if (is_of_micro_batch(pass.kind) && neighbour >= 0 && neighbour < 4) {
          actions.push_back(
              {.kind = kind, .micro_batch = pass.micro_batch, .chunk = pass.chunk, .peer = 1 - stage});
        }
      };
      add(is_forward ? receive_forward : receive_backward, pass.chunk + (is_forward ? -1 : 1));
      actions.push_back(pass);
      add(is_forward ? send_forward : send_backward, pass.chunk + (is_forward ? 1 : -1));
    }
    stages[static_cast<std::size_t>(stage)].actions = std::move(actions);
  }
  const std::string problem = walk(stages, next_behaviour());
  EXPECT_THAT(problem, HasSubstr("rank 0 waits for "));
  EXPECT_THAT(problem, HasSubstr("; rank 1 waits for "));
}

TEST_P(NcclMessages, OfDifferentSizesAreReported) {
  EXPECT_EQ(run_with_nccl(2, next_behaviour(),
                          [](Communicator& comm, StreamBackend& backend) {
                            std::array<std::uint8_t, 4> bytes{};
                            const TensorRef buffer(bytes.data(), DType::uint8, {3 + comm.rank()});
                            Request request =
                                comm.rank() == 0 ? comm.send(buffer, 1, 0) : comm.recv(buffer, 0, 0);
                            request.wait();
                            backend.synchronize();
                          }),
            "a send of 3 uint8 to rank 1 meets a receive of 4 uint8 from rank 0");
}

/// Until their group ends, nothing marks the end of messages, and a split would hang.
TEST_P(NcclMessages, CannotBeAwaitedBeforeTheirGroupEnds) {
  const auto body = [](Communicator& comm, StreamBackend& backend) {
    std::uint8_t byte = 0;
    const TensorRef buffer(&byte, DType::uint8, {1});
    comm.begin_messages();
    Request request = comm.rank() == 0 ? comm.send(buffer, 1, 0) : comm.recv(buffer, 0, 0);
    EXPECT_THROW(request.wait(), Error);
    EXPECT_THROW(request.test(), Error);
    EXPECT_THROW(comm.split(0, 0), Error);
    comm.end_messages();
    request.wait();
    backend.synchronize();
  };
  EXPECT_EQ(run_with_nccl(2, next_behaviour(), body), "");
}

/// Messages of parts, an empty group, messages within a collective, and barriers, one after the other.
TEST_P(NcclMessages, ComeBetweenOtherOperations) {
  const auto body = [](Communicator& comm, StreamBackend& backend) {
    const auto ref = [](auto& data) { return TensorRef(data.data(), DType::int64, {std::ssize(data)}); };
    const std::unique_ptr<Communicator> pair = comm.split(comm.rank() % 2, -comm.rank());
    EXPECT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->rank(), comm.rank() < 2 ? 1 : 0);
    for (std::int64_t round = 0; round < 3; ++round) {
      std::array<std::int64_t, 1> sent{10 * round + comm.rank()};
      std::array<std::int64_t, 1> received{-1};
      std::array<std::int64_t, 4> parts{};
      std::array<std::int64_t, 4> all{};
      parts.fill(sent.front());
      pair->begin_messages();
      pair->end_messages();
      pair->begin_messages();
      Request send = pair->send(ref(sent), 1 - pair->rank(), 0);
      Request receive = pair->recv(ref(received), 1 - pair->rank(), 0);
      pair->end_messages();
      comm.all_to_all(ref(parts), ref(all)).host_wait();
      send.host_wait();
      receive.wait();
      backend.synchronize();
      EXPECT_EQ(received.front(), 10 * round + (comm.rank() + 2) % 4);
      EXPECT_THAT(all, testing::ElementsAre(10 * round, 10 * round + 1, 10 * round + 2, 10 * round + 3));
      comm.barrier();
    }
  };
  EXPECT_EQ(run_with_nccl(4, next_behaviour(), body), "");
}

}  // namespace
}  // namespace mylos
