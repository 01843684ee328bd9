// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/traced_communicator.hpp"

#include <array>
#include <string_view>

namespace mylos {

namespace {

/// By CommOperation; a barrier has no wait. The names of events must be literals.
constexpr std::array<std::string_view, num_operations - 1> wait_names = {
    "all_reduce wait", "reduce_scatter wait", "all_gather wait", "broadcast wait", "reduce wait",
    "all_to_all wait", "all_to_all_v wait",   "send wait",       "recv wait"};

}  // namespace

Request TracedCommunicator::start(const CommCall& call) {
  if (!trace_.on()) return call.on(next());
  const Trace::Scope event = record(name_of(call.operation));
  const std::string_view wait_name = wait_names[static_cast<std::size_t>(call.operation)];
  return with_waits(call.on(next()), [this, wait_name](const auto& wait) {
    const Trace::Scope waiting = record(wait_name);
    wait();
  });
}

void TracedCommunicator::barrier() {
  const Trace::Scope event = record("barrier");
  next().barrier();
}

void TracedCommunicator::progress() {
  const Trace::Scope event = record("progress");
  next().progress();
}

std::unique_ptr<Communicator> TracedCommunicator::split(int color, int key) {
  return std::make_unique<TracedCommunicator>(next().split(color, key), trace_, axes_);
}

}  // namespace mylos
