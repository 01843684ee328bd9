// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/algorithm_communicator.hpp"

#include <array>
#include <cstring>

#include "core/ops/host_reduction.hpp"

namespace mylos {

namespace {

constexpr int first_tag = AlgorithmCommunicator::last_user_tag + 1;
constexpr int last_tag = 32765;
constexpr std::size_t schedules_kept = 256;

void require_same_type(TensorRef input, TensorRef output) {
  require(input.dtype == output.dtype, "input and output have the same type");
}

void require_user_tag(int tag) {
  require(tag >= 0 && tag <= AlgorithmCommunicator::last_user_tag, "tag is 0 to 16383");
}

}  // namespace

/// Runs the rounds of a schedule. Keeps its scratch until its request has been waited for, so that the memory
/// of a step does not depend on how fast messages arrive.
class AlgorithmCommunicator::ScheduledOperation final : public PolledOperation {
 public:
  ScheduledOperation(AlgorithmCommunicator& owner, std::shared_ptr<const CollectiveSchedule> schedule,
                     TensorRef input, TensorRef output, ReduceOp op, int tag)
      : wire_(owner.wire_),
        family_(*owner.family_),
        schedule_(std::move(schedule)),
        dtype_(output.dtype),
        op_(op),
        tag_(tag),
        scratch_(family_.scratch.take(static_cast<std::size_t>(schedule_->scratch_count) * size_of(dtype_))),
        buffers_{static_cast<std::byte*>(input.data), static_cast<std::byte*>(output.data), scratch_.data()} {
  }

  bool advance() override {
    for (; round_ < schedule_->rounds.size(); ++round_) {
      const CollectiveRound& round = schedule_->rounds[round_];
      if (!posted_) post(round);
      if (!receiving_.test() || !sending_.test()) {
        wire_.progress();  // another rank may first wait for a native operation
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
    if (round.receive || round.send) family_.steps += 1;
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
  Family& family_;
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
                                             ComputeBackend* compute, MemoryLedger* ledger)
    : AlgorithmCommunicator(std::move(next), std::move(choice), wire_label, counter, compute,
                            std::make_shared<Family>(ledger)) {}

AlgorithmCommunicator::AlgorithmCommunicator(NextCommunicator next, AlgorithmChoice choice,
                                             std::string_view wire_label, TrafficCounter& counter,
                                             ComputeBackend* compute, std::shared_ptr<Family> family)
    : ForwardingCommunicator(std::move(next)),
      choice_(std::move(choice)),
      wire_label_(wire_label),
      counter_(&counter),
      compute_(compute),
      family_(std::move(family)),
      wire_(this->next(), wire_label, counter, nullptr) {
  if (compute != nullptr && !compute->host_accessible() && !choice_.is_native()) {
    fail(ExitCode::usage,
         "comm.algorithm = {} needs buffers in host memory, but those of {} are not; use native",
         choice_.text(), compute->description());
  }
}

void AlgorithmCommunicator::synchronize() {
  if (compute_ != nullptr) compute_->synchronize();
}

std::shared_ptr<const CollectiveSchedule> AlgorithmCommunicator::schedule(const CollectiveCall& call,
                                                                          Algorithm algorithm) {
  if (schedules_.size() >= schedules_kept) schedules_.clear();
  auto& made = schedules_[{call.operation, algorithm, call.count, call.root}];
  if (!made) made = std::make_shared<const CollectiveSchedule>(make_schedule(call, algorithm, rank()));
  return made;
}

Request AlgorithmCommunicator::start(const CollectiveCall& call, Algorithm algorithm, TensorRef input,
                                     TensorRef output, ReduceOp op) {
  require(input.contiguous() && output.contiguous(), "communication buffers are contiguous");
  family_->operations += 1;
  const int tag = first_tag + next_tag_;
  next_tag_ = (next_tag_ + 1) % (last_tag - first_tag + 1);
  return family_->engine.start(
      std::make_unique<ScheduledOperation>(*this, schedule(call, algorithm), input, output, op, tag));
}

Request AlgorithmCommunicator::all_reduce(TensorRef buffer, ReduceOp op) {
  synchronize();
  const Algorithm algorithm = choice_.of(CommOperation::all_reduce, buffer.bytes());
  if (algorithm == Algorithm::native) return next().all_reduce(buffer, op);
  return start({CommOperation::all_reduce, size(), buffer.size()}, algorithm, buffer, buffer, op);
}

Request AlgorithmCommunicator::reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) {
  require_same_type(input, output);
  require(input.size() == output.size() * size(), "input is output times ranks");
  synchronize();
  const Algorithm algorithm = choice_.of(CommOperation::reduce_scatter, input.bytes());
  if (algorithm == Algorithm::native) return next().reduce_scatter(input, output, op);
  return start({CommOperation::reduce_scatter, size(), output.size()}, algorithm, input, output, op);
}

Request AlgorithmCommunicator::all_gather(TensorRef input, TensorRef output) {
  require_same_type(input, output);
  require(output.size() == input.size() * size(), "output is input times ranks");
  synchronize();
  const Algorithm algorithm = choice_.of(CommOperation::all_gather, output.bytes());
  if (algorithm == Algorithm::native) return next().all_gather(input, output);
  return start({CommOperation::all_gather, size(), input.size()}, algorithm, input, output, ReduceOp::sum);
}

Request AlgorithmCommunicator::broadcast(TensorRef buffer, int root) {
  synchronize();
  const Algorithm algorithm = choice_.of(CommOperation::broadcast, buffer.bytes());
  if (algorithm == Algorithm::native) return next().broadcast(buffer, root);
  return start({CommOperation::broadcast, size(), buffer.size(), root}, algorithm, buffer, buffer,
               ReduceOp::sum);
}

Request AlgorithmCommunicator::reduce(TensorRef buffer, ReduceOp op, int root) {
  synchronize();
  const Algorithm algorithm = choice_.of(CommOperation::reduce, buffer.bytes());
  if (algorithm == Algorithm::native) return next().reduce(buffer, op, root);
  return start({CommOperation::reduce, size(), buffer.size(), root}, algorithm, buffer, buffer, op);
}

Request AlgorithmCommunicator::all_to_all(TensorRef input, TensorRef output) {
  require_same_type(input, output);
  require(input.size() == output.size() && input.size() % size() == 0,
          "input and output have one part for each rank");
  synchronize();
  const Algorithm algorithm = choice_.of(CommOperation::all_to_all, input.bytes());
  if (algorithm == Algorithm::native) return next().all_to_all(input, output);
  return start({CommOperation::all_to_all, size(), input.size() / size()}, algorithm, input, output,
               ReduceOp::sum);
}

Request AlgorithmCommunicator::all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts,
                                            TensorRef output, std::span<const std::int64_t> recv_counts) {
  synchronize();
  return next().all_to_all_v(input, send_counts, output, recv_counts);
}

Request AlgorithmCommunicator::send(TensorRef buffer, int peer, int tag) {
  require_user_tag(tag);
  synchronize();
  return next().send(buffer, peer, tag);
}

Request AlgorithmCommunicator::recv(TensorRef buffer, int peer, int tag) {
  require_user_tag(tag);
  synchronize();
  return next().recv(buffer, peer, tag);
}

void AlgorithmCommunicator::progress() {
  family_->engine.progress();
  next().progress();
}

std::unique_ptr<Communicator> AlgorithmCommunicator::split(int color, int key) {
  return std::unique_ptr<Communicator>(new AlgorithmCommunicator(next().split(color, key), choice_,
                                                                 wire_label_, *counter_, compute_, family_));
}

AlgorithmTotals AlgorithmCommunicator::totals() const {
  return {family_->operations, family_->steps, family_->scratch.peak_bytes(),
          family_->scratch.num_allocations()};
}

}  // namespace mylos
