// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/simulated_link.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <numeric>
#include <thread>

namespace mylos {

namespace {

using Nanoseconds = std::int64_t;

class MonotonicClock final : public LinkClock {
 public:
  Nanoseconds now() override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  }
  bool has_come(Nanoseconds time) override { return now() >= time; }
  void sleep_until(Nanoseconds time) override {
    std::this_thread::sleep_until(Clock::time_point(std::chrono::nanoseconds(time)));
  }

 private:
  using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC
};

/// A message under way: a header with the time of delivery, then the payload.
class LinkRequest final : public RequestState {
 public:
  LinkRequest(LinkClock& clock, Nanoseconds delivery) : clock_(clock), delivery_(delivery) {}

  TensorRef header() { return {&delivery_, DType::int64, {1}}; }
  void start(Request header, Request payload) {
    header_ = std::move(header);
    payload_ = std::move(payload);
  }

  bool test() override {
    if (!arrived_) {
      if (!header_.test() || !payload_.test()) return false;
      header_.host_wait();
      payload_.host_wait();
      arrived_ = true;
    }
    return clock_.has_come(delivery_);
  }
  void host_wait() override {
    header_.host_wait();
    payload_.host_wait();
    arrived_ = true;
    clock_.sleep_until(delivery_);
  }

 private:
  LinkClock& clock_;
  Nanoseconds delivery_;
  Request header_;
  Request payload_;
  bool arrived_ = false;
};

}  // namespace

LinkClock& monotonic_link_clock() {
  static MonotonicClock clock;
  return clock;
}

class SimulatedLink::Links {
 public:
  Links(const LinkModel& model, LinkClock& clock, int world_size)
      : model_(model), clock_(clock), free_at_(static_cast<std::size_t>(world_size), 0) {
    if (!(model.latency >= 0.0) || !(model.gigabits_per_second > 0.0) || !std::isfinite(model.latency)) {
      fail(ExitCode::usage,
           "a simulated link needs a finite latency of at least 0 s and a bandwidth above 0 Gbit/s, not {} s "
           "and {} Gbit/s",
           model.latency, model.gigabits_per_second);
    }
  }

  LinkClock& clock() const { return clock_; }

  /// Puts a message on the link to `world_rank`; returns the time of its delivery.
  Nanoseconds occupy(int world_rank, std::size_t bytes) {
    const double seconds =
        model_.latency + 8.0 * static_cast<double>(bytes) / (model_.gigabits_per_second * 1e9);
    const std::lock_guard lock(mutex_);
    Nanoseconds& free_at = free_at_[static_cast<std::size_t>(world_rank)];
    constexpr double longest = 1e15;  // ns, eleven days: the sum of many stays within 64 bits
    free_at = std::max(clock_.now(), free_at) + std::llround(std::min(seconds * 1e9, longest));
    return free_at;
  }

 private:
  LinkModel model_;
  LinkClock& clock_;
  std::mutex mutex_;
  std::vector<Nanoseconds> free_at_;  // by the receiver's rank in the world
};

SimulatedLink::SimulatedLink(NextCommunicator next, const LinkModel& model, LinkClock& clock)
    : ForwardingCommunicator(std::move(next)),
      links_(std::make_shared<Links>(model, clock, size())),
      world_ranks_(static_cast<std::size_t>(size())) {
  std::iota(world_ranks_.begin(), world_ranks_.end(), 0);
}

SimulatedLink::SimulatedLink(NextCommunicator next, std::shared_ptr<Links> links,
                             std::vector<int> world_ranks)
    : ForwardingCommunicator(std::move(next)),
      links_(std::move(links)),
      world_ranks_(std::move(world_ranks)) {}

Request SimulatedLink::start(const CommCall& call) {
  const bool is_sent = call.operation == CommOperation::send;
  if (!is_sent && call.operation != CommOperation::recv) {
    fail(ExitCode::usage,
         "a simulated link cannot run a native {}; choose an algorithm that uses send and receive",
         name_of(call.operation));
  }
  const int world_rank = world_ranks_[static_cast<std::size_t>(call.peer)];
  const Nanoseconds delivery = is_sent ? links_->occupy(world_rank, call.input.bytes()) : 0;
  auto request = std::make_unique<LinkRequest>(links_->clock(), delivery);
  CommCall header = call;
  header.input = header.output = request->header();
  Request header_request = header.on(next());
  request->start(std::move(header_request), call.on(next()));
  return Request(std::move(request));
}

std::unique_ptr<Communicator> SimulatedLink::split(int color, int key) {
  std::unique_ptr<Communicator> part = next().split(color, key);
  std::int32_t own = world_ranks_[static_cast<std::size_t>(rank())];
  std::vector<std::int32_t> all(static_cast<std::size_t>(part->size()));
  part->all_gather(TensorRef(&own, DType::int32, {1}), TensorRef(all.data(), DType::int32, {part->size()}))
      .host_wait();
  return std::unique_ptr<Communicator>(new SimulatedLink(std::move(part), links_, std::move(all)));
}

}  // namespace mylos
