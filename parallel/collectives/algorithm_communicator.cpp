// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/algorithm_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "core/communication/host_reduction.hpp"

namespace mylos {

namespace {

constexpr int first_tag = AlgorithmCommunicator::last_user_tag + 1;
constexpr int last_tag = 32765;
constexpr std::size_t schedules_kept = 256;

/// The number of elements of a call among `ranks` ranks, as CollectiveCall defines it.
std::int64_t count_of(const CommCall& call, int ranks) {
  require(call.input.dtype == call.output.dtype, "input and output have the same type");
  const std::int64_t input = call.input.size();
  const std::int64_t output = call.output.size();
  switch (call.operation) {
    case CommOperation::reduce_scatter:
      require(input == output * ranks, "input is output times ranks");
      return output;
    case CommOperation::all_gather:
      require(output == input * ranks, "output is input times ranks");
      return input;
    case CommOperation::all_to_all:
      require(input == output && input % ranks == 0, "input and output have one part for each rank");
      return input / ranks;
    default:
      return input;
  }
}

}  // namespace

/// Runs the rounds of a schedule. Keeps its scratch until its request has been waited for, so that the memory
/// of a step does not depend on how fast messages arrive.
class AlgorithmCommunicator::ScheduledOperation final : public PolledOperation {
 public:
  ScheduledOperation(AlgorithmCommunicator& owner, std::shared_ptr<const CollectiveSchedule> schedule,
                     const CommCall& call, int tag)
      : wire_(owner.wire_),
        schedule_(std::move(schedule)),
        dtype_(call.output.dtype),
        op_(call.reduction),
        tag_(tag),
        scratch_(owner.engine_->scratch.take(static_cast<std::size_t>(schedule_->scratch_count) *
                                             size_of(dtype_))),
        buffers_{static_cast<std::byte*>(call.input.data), static_cast<std::byte*>(call.output.data),
                 scratch_.data()} {}

  bool advance() override {
    for (; round_ < schedule_->rounds.size(); ++round_) {
      const CollectiveRound& round = schedule_->rounds[round_];
      if (!posted_) post(round);
      if (!receiving_.test() || !sending_.test()) {
        wire_.progress();  // another rank may be waiting for a native operation first
        return false;
      }
      receiving_.host_wait();
      sending_.host_wait();
      for (const LocalStep& step : round.local) run(step);
      posted_ = false;
    }
    return true;
  }

 private:
  TensorRef at(const BufferRange& range) const {
    std::byte* buffer = buffers_[static_cast<std::size_t>(range.buffer)];
    return {buffer + static_cast<std::size_t>(range.first) * size_of(dtype_), dtype_, {range.count}};
  }
  void post(const CollectiveRound& round) {
    if (round.receive) receiving_ = wire_.recv(at(round.receive->range), round.receive->peer, tag_);
    if (round.send) sending_ = wire_.send(at(round.send->range), round.send->peer, tag_);
    posted_ = true;
  }
  void run(const LocalStep& step) const {
    const TensorRef from = at(step.from);
    const TensorRef to = at(step.to);
    if (step.kind == LocalStep::Kind::combine) {
      combine(dtype_, op_, from.data, to.data, static_cast<std::size_t>(step.to.count));
    } else if (from.data != to.data) {
      std::memmove(to.data, from.data, to.bytes());
    }
  }

  CountedCommunicator& wire_;
  std::shared_ptr<const CollectiveSchedule> schedule_;
  DType dtype_;
  ReduceOp op_;
  int tag_;
  ScratchPool::Lease scratch_;
  std::array<std::byte*, 3> buffers_;  // by BufferName
  std::size_t round_ = 0;
  bool posted_ = false;
  Request receiving_;
  Request sending_;
};

AlgorithmCommunicator::AlgorithmCommunicator(NextCommunicator next, AlgorithmChoice choice,
                                             std::string_view wire_label, TrafficCounter& counter,
                                             ComputeBackend* compute, std::shared_ptr<OperationEngine> engine)
    : ForwardingCommunicator(std::move(next)),
      choice_(std::move(choice)),
      wire_label_(wire_label),
      counter_(&counter),
      compute_(compute),
      engine_(std::move(engine)),
      wire_(this->next(), wire_label, counter, nullptr) {
  if (compute != nullptr && !compute->host_accessible() && !choice_.is_native()) {
    fail(ExitCode::usage,
         "comm.algorithm = {} needs buffers in host memory, but {} allocates device memory; use native",
         choice_.text(), compute->description());
  }
}

std::shared_ptr<const CollectiveSchedule> AlgorithmCommunicator::schedule(const CollectiveCall& call,
                                                                          Algorithm algorithm) {
  if (schedules_.size() >= schedules_kept) schedules_.clear();
  auto& made = schedules_[{call.operation, algorithm, call.count, call.root}];
  if (!made) made = std::make_shared<const CollectiveSchedule>(make_schedule(call, algorithm, rank()));
  return made;
}

Request AlgorithmCommunicator::start(const CommCall& call) {
  if (compute_ != nullptr) compute_->synchronize();
  if (call.operation == CommOperation::all_to_all_v && !choice_.is_native()) return exchange(call);
  if (call.operation > CommOperation::all_to_all) {  // messages have no schedule
    require(call.tag >= 0 && call.tag <= last_user_tag, "tag is 0 to 16383");
    return call.on(next());
  }
  const CollectiveCall collective{call.operation, size(), count_of(call, size()), call.peer};
  const Algorithm algorithm = choice_.of(call.operation, call.payload_bytes());
  if (algorithm == Algorithm::native) return call.on(next());
  require(call.input.contiguous() && call.output.contiguous(), "communication buffers are contiguous");
  const int tag = first_tag + next_tag_;
  next_tag_ = (next_tag_ + 1) % (last_tag - first_tag + 1);
  return engine_->start(
      std::make_unique<ScheduledOperation>(*this, schedule(collective, algorithm), call, tag));
}

namespace {

/// Messages that are under way together. Waiting for them advances the scheduled operations.
class Messages final : public RequestState {
 public:
  explicit Messages(std::shared_ptr<OperationEngine> engine) : engine_(std::move(engine)) {}

  void add(Request message) { messages_.push_back(std::move(message)); }
  bool test() override {
    return std::ranges::all_of(messages_, [](Request& message) { return message.test(); });
  }
  void host_wait() override {
    for (; !test(); std::this_thread::yield()) engine_->progress();
    for (Request& message : messages_) message.host_wait();
  }

 private:
  std::shared_ptr<OperationEngine> engine_;
  std::vector<Request> messages_;
};

}  // namespace

Request AlgorithmCommunicator::exchange(const CommCall& call) {
  const int tag = first_tag + next_tag_;
  next_tag_ = (next_tag_ + 1) % (last_tag - first_tag + 1);
  auto messages = std::make_unique<Messages>(engine_);
  std::int64_t sent = 0;
  std::int64_t received = 0;
  wire_.begin_messages();
  for (int peer = 0; peer < size(); ++peer) {
    const std::int64_t to = call.send_counts[static_cast<std::size_t>(peer)];
    const std::int64_t from = call.recv_counts[static_cast<std::size_t>(peer)];
    const TensorRef out = call.input.flat(sent, to);
    const TensorRef in = call.output.flat(received, from);
    sent += to;
    received += from;
    if (peer == rank()) {
      require(to == from, "a rank sends itself what it receives from itself");
      if (to > 0) std::memcpy(in.data, out.data, out.bytes());
      continue;
    }
    if (from > 0) messages->add(wire_.recv(in, peer, tag));
    if (to > 0) messages->add(wire_.send(out, peer, tag));
  }
  wire_.end_messages();
  return Request(std::move(messages));
}

void AlgorithmCommunicator::progress() {
  engine_->progress();
  next().progress();
}

std::unique_ptr<Communicator> AlgorithmCommunicator::split(int color, int key) {
  return std::make_unique<AlgorithmCommunicator>(next().split(color, key), choice_, wire_label_, *counter_,
                                                 compute_, engine_);
}

}  // namespace mylos
