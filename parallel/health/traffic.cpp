// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/traffic.hpp"

#include <algorithm>

#include "parallel/health/flight_recorder.hpp"

namespace mylos {

namespace {

class TrackedRequest final : public RequestState {
 public:
  TrackedRequest(Request inner, FlightRecorder& recorder, std::uint64_t number)
      : inner_(std::move(inner)), recorder_(recorder), number_(number) {}

  void wait() override {
    inner_.wait();
    recorder_.complete(number_);
  }
  void host_wait() override {
    inner_.host_wait();
    recorder_.complete(number_);
  }
  bool test() override { return inner_.test(); }

 private:
  Request inner_;
  FlightRecorder& recorder_;
  std::uint64_t number_;
};

constexpr std::size_t call_text_bytes = 96;
using CallText = std::array<char, call_text_bytes>;

}  // namespace

std::vector<TrafficRow> subtract(std::vector<TrafficRow> all, const std::vector<TrafficRow>& part) {
  for (TrafficRow& row : all) {
    const auto same = [&](const TrafficRow& other) {
      return other.axis == row.axis && other.operation == row.operation;
    };
    const auto found = std::ranges::find_if(part, same);
    if (found == part.end()) continue;
    row.calls -= found->calls;
    row.payload_bytes -= found->payload_bytes;
  }
  std::erase_if(all, [](const TrafficRow& row) { return row.calls == 0; });
  return all;
}

TrafficCounter::Axis& TrafficCounter::axis(std::string_view label) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.label() == label; });
  return found != axes_.end() ? *found : axes_.emplace_back(std::string(label));
}

std::vector<TrafficRow> TrafficCounter::table() const {
  const std::lock_guard lock(mutex_);
  std::vector<TrafficRow> rows;
  for (const Axis& axis : axes_) {
    for (int i = 0; i < num_operations; ++i) {
      const auto operation = static_cast<CommOperation>(i);
      if (axis.calls(operation) == 0) continue;
      rows.push_back({axis.label(), operation, axis.calls(operation), axis.payload_bytes(operation)});
    }
  }
  return rows;
}

TrafficTotals TrafficCounter::totals() const {
  const std::lock_guard lock(mutex_);
  TrafficTotals totals;
  for (const Axis& axis : axes_) {
    for (int i = 0; i < num_operations; ++i) {
      totals.calls += axis.calls(static_cast<CommOperation>(i));
      totals.payload_bytes += axis.payload_bytes(static_cast<CommOperation>(i));
    }
  }
  return totals;
}

CountedCommunicator::CountedCommunicator(NextCommunicator next, std::string_view label,
                                         TrafficCounter& counter, FlightRecorder* recorder, bool host_buffers)
    : ForwardingCommunicator(std::move(next)),
      axis_(&counter.axis(label)),
      recorder_(recorder),
      checked_(calls_are_checked && host_buffers) {}

std::uint64_t CountedCommunicator::begin(CommOperation operation, std::uint64_t payload_bytes) {
  axis_->count(operation, payload_bytes);
  return recorder_ != nullptr
             ? recorder_->begin(CallKind::collective, name_of(operation), axis_->label(), payload_bytes)
             : 0;
}

Request CountedCommunicator::track(Request inner, std::uint64_t number) {
  if (recorder_ == nullptr) return inner;
  return Request(std::make_unique<TrackedRequest>(std::move(inner), *recorder_, number));
}

void CountedCommunicator::check(const Call& call) {
  if (!checked_) return;
  std::int64_t hash = 0;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(call.operation), static_cast<std::uint64_t>(call.dtype), call.bytes,
        static_cast<std::uint64_t>(call.detail)}) {
    hash = (hash * 1000003 + static_cast<std::int64_t>(part)) & 0x7fffffffffff;
  }
  std::array<std::int64_t, 2> extremes = {hash, -hash};
  next().all_reduce(TensorRef(extremes.data(), DType::int64, {2}), ReduceOp::max).host_wait();
  if (extremes[0] == -extremes[1]) return;

  CallText own{};
  fmt::format_to_n(own.data(), own.size() - 1, "rank {}: {} of {} bytes of {}, reduction or root {}",
                   recorder_ != nullptr ? recorder_->rank() : rank(), name_of(call.operation), call.bytes,
                   name_of(call.dtype), call.detail);
  std::vector<CallText> all(static_cast<std::size_t>(size()));
  constexpr auto width = static_cast<std::int64_t>(call_text_bytes);
  next()
      .all_gather(TensorRef(own.data(), DType::uint8, {width}),
                  TensorRef(all.data(), DType::uint8, {width * size()}))
      .host_wait();
  std::string message = fmt::format("mismatched collective on axis {}:", axis_->label());
  for (const CallText& text : all) message += fmt::format("\n  {}", text.data());
  throw Error(ExitCode::watchdog, message);
}

Request CountedCommunicator::all_reduce(TensorRef buffer, ReduceOp op) {
  const std::uint64_t number = begin(CommOperation::all_reduce, buffer.bytes());
  check({CommOperation::all_reduce, buffer.dtype, buffer.bytes(), static_cast<int>(op)});
  return track(next().all_reduce(buffer, op), number);
}

Request CountedCommunicator::reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) {
  const std::uint64_t number = begin(CommOperation::reduce_scatter, input.bytes());
  check({CommOperation::reduce_scatter, input.dtype, input.bytes(), static_cast<int>(op)});
  return track(next().reduce_scatter(input, output, op), number);
}

Request CountedCommunicator::all_gather(TensorRef input, TensorRef output) {
  const std::uint64_t number = begin(CommOperation::all_gather, output.bytes());
  check({CommOperation::all_gather, output.dtype, output.bytes()});
  return track(next().all_gather(input, output), number);
}

Request CountedCommunicator::broadcast(TensorRef buffer, int root) {
  const std::uint64_t number = begin(CommOperation::broadcast, buffer.bytes());
  check({CommOperation::broadcast, buffer.dtype, buffer.bytes(), root});
  return track(next().broadcast(buffer, root), number);
}

Request CountedCommunicator::reduce(TensorRef buffer, ReduceOp op, int root) {
  const std::uint64_t number = begin(CommOperation::reduce, buffer.bytes());
  check({CommOperation::reduce, buffer.dtype, buffer.bytes(), static_cast<int>(op) + num_operations * root});
  return track(next().reduce(buffer, op, root), number);
}

Request CountedCommunicator::all_to_all(TensorRef input, TensorRef output) {
  const std::uint64_t number = begin(CommOperation::all_to_all, input.bytes());
  check({CommOperation::all_to_all, input.dtype, input.bytes()});
  return track(next().all_to_all(input, output), number);
}

Request CountedCommunicator::all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts,
                                          TensorRef output, std::span<const std::int64_t> recv_counts) {
  std::uint64_t elements = 0;
  for (const std::int64_t count : send_counts) elements += static_cast<std::uint64_t>(count);
  const std::uint64_t number = begin(CommOperation::all_to_all_v, elements * size_of(input.dtype));
  check({CommOperation::all_to_all_v, input.dtype});
  return track(next().all_to_all_v(input, send_counts, output, recv_counts), number);
}

Request CountedCommunicator::send(TensorRef buffer, int peer, int tag) {
  const std::uint64_t number = begin(CommOperation::send, buffer.bytes());
  return track(next().send(buffer, peer, tag), number);
}

Request CountedCommunicator::recv(TensorRef buffer, int peer, int tag) {
  const std::uint64_t number = begin(CommOperation::recv, buffer.bytes());
  return track(next().recv(buffer, peer, tag), number);
}

void CountedCommunicator::barrier() {
  const std::uint64_t number = begin(CommOperation::barrier, 0);
  check({CommOperation::barrier});
  next().barrier();
  if (recorder_ != nullptr) recorder_->complete(number);
}

}  // namespace mylos
