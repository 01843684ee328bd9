// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/traffic.hpp"

#include <algorithm>
#include <array>

#include "core/communication/call_site.hpp"
#include "parallel/health/flight_recorder.hpp"

namespace mylos {

namespace {

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

CountedCommunicator::CountedCommunicator(NextCommunicator next, std::string_view label,
                                         TrafficCounter& counter, FlightRecorder* recorder, bool host_buffers)
    : ForwardingCommunicator(std::move(next)),
      axis_(&counter.axis(label)),
      recorder_(recorder),
      checked_(calls_are_checked && host_buffers) {}

void CountedCommunicator::check(const CommCall& call) {
  // The counts of all_to_all_v may differ between ranks.
  const std::uint64_t bytes = call.operation == CommOperation::all_to_all_v ? 0 : call.payload_bytes();
  // Encodes the reduction and the root; only `reduce` has both.
  const int roots = call.operation == CommOperation::reduce ? num_operations : 1;
  const int detail = static_cast<int>(call.reduction) + roots * call.peer;
  std::int64_t hash = 0;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(call.operation), static_cast<std::uint64_t>(call.input.dtype), bytes,
        static_cast<std::uint64_t>(detail)}) {
    hash = (hash * 1000003 + static_cast<std::int64_t>(part)) & 0x7fffffffffff;
  }
  std::array<std::int64_t, 2> extremes = {hash, -hash};
  next().all_reduce(TensorRef(extremes.data(), DType::int64, {2}), ReduceOp::max).host_wait();
  if (extremes[0] == -extremes[1]) return;

  CallText own{};
  fmt::format_to_n(own.data(), own.size() - 1, "rank {}: {} of {} bytes of {}, with reduction or root {}",
                   recorder_ != nullptr ? recorder_->rank() : rank(), name_of(call.operation), bytes,
                   name_of(call.input.dtype), detail);
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

Request CountedCommunicator::start_message(const CommCall& call) {
  Request request = call.on(next());
  if (recorder_ == nullptr) return request;
  std::array<char, object_bytes> object{};
  const CallSite* site = current_call_site();
  fmt::format_to_n(object.data(), object.size() - 1, "{}; {}", axis_->label(),
                   site != nullptr ? site->program : "outside of programs");
  // A message may be posted long before its other end: what counts is how long this end waits.
  return with_waits(std::move(request), [recorder = recorder_, operation = call.operation, object,
                                         bytes = call.payload_bytes()](const auto& wait) {
    const std::uint64_t number = recorder->begin(CallKind::message, name_of(operation), object.data(), bytes);
    wait();
    recorder->complete(number);
  });
}

Request CountedCommunicator::start(const CommCall& call) {
  const std::uint64_t payload_bytes = call.payload_bytes();
  axis_->count(call.operation, payload_bytes);
  const CallSite* site = current_call_site();
  const bool is_message = call.operation == CommOperation::send || call.operation == CommOperation::recv;
  if (is_message || (site != nullptr && site->is_awaited_late)) return start_message(call);
  std::uint64_t number = 0;
  if (recorder_ != nullptr) {
    std::array<char, object_bytes> object{};
    if (site == nullptr) {
      fmt::format_to_n(object.data(), object.size() - 1, "{}", axis_->label());
    } else {
      const std::string of_layer = site->layer >= 0 ? fmt::format(" in h.{}", site->layer) : "";
      fmt::format_to_n(object.data(), object.size() - 1, "{}; {} {}{}, {}:{}", axis_->label(), site->program,
                       site->number, of_layer, site->where.file_name(), site->where.line());
    }
    number = recorder_->begin(CallKind::collective, name_of(call.operation), object.data(), payload_bytes);
  }
  if (checked_ && site == nullptr) check(call);
  Request request = call.on(next());
  if (recorder_ == nullptr) return request;
  return with_waits(std::move(request), [recorder = recorder_, number](const auto& wait) {
    wait();
    recorder->complete(number);
  });
}

void CountedCommunicator::barrier() {
  start({.operation = CommOperation::barrier, .input = {nullptr, DType::uint8, {0}}}).host_wait();
}

}  // namespace mylos
