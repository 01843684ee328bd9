// SPDX-License-Identifier: BSD-3-Clause
#include "core/trace/trace.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include <fmt/core.h>

namespace mylos {

std::string TraceEvent::label() const {
  std::string text(name);
  if (shape.in != 0) text += fmt::format(" {}x{}", shape.in, shape.out);
  if (by != nullptr) text += fmt::format(" ({})", by);
  return text;
}

Trace::Scope::Scope(Trace& trace, std::string_view name, TraceKind kind, LinearShape shape, const char* by)
    : trace_(trace), records_(trace.on_) {
  trace_.backend_.begin_range(name.data());  // a literal, so it is null-terminated
  if (!records_) return;
  event_ = {.name = name,
            .kind = kind,
            .shape = shape,
            .by = by,
            .begin = trace_.now(),
            .micro_batch = trace_.micro_batch_,
            .chunk = trace_.chunk_,
            .entry = trace_.entry_};
}

Trace::Scope::~Scope() {
  if (records_) {
    trace_.backend_.synchronize();
    event_.end = trace_.now();
    trace_.add(event_);
  }
  trace_.backend_.end_range();
}

void Trace::Scope::taken_by(const char* taker) {
  event_.by = taker;
  records_ = records_ && taker != nullptr;
}

void Trace::start(std::size_t most_events) {
  events_.clear();
  events_.reserve(most_events + room_for_phases);
  most_events_ = most_events;
  num_lost_ = 0;
  origin_ = std::chrono::steady_clock::now();
  on_ = true;
}

std::int64_t Trace::now() const {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::steady_clock::now() - origin_).count();
}

void Trace::add(const TraceEvent& event) {
  const std::size_t most = event.kind == TraceKind::phase ? most_events_ + room_for_phases : most_events_;
  if (events_.size() < most) {
    events_.push_back(event);
  } else {
    ++num_lost_;
  }
}

double StepProfile::covered() const {
  return std::transform_reduce(operations.begin(), operations.end(), 0.0, std::plus(),
                               [](const OperationTime& operation) { return operation.seconds; });
}

StepProfile profile_of(const Trace& trace) {
  std::map<std::string, OperationTime> by_label;
  StepProfile profile;
  for (const TraceEvent& event : trace.events()) {
    const double seconds = 1e-9 * static_cast<double>(event.end - event.begin);
    if (event.name == whole_step) profile.seconds += seconds;
    if (event.kind == TraceKind::phase) continue;
    const std::string label = event.label();
    OperationTime& sum = by_label.try_emplace(label, OperationTime{label, event.kind}).first->second;
    ++sum.calls;
    sum.seconds += seconds;
  }
  for (auto& [label, sum] : by_label) profile.operations.push_back(std::move(sum));
  std::ranges::stable_sort(profile.operations, std::ranges::greater(), &OperationTime::seconds);
  return profile;
}

}  // namespace mylos
