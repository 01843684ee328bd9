// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/traced_communicator.hpp"

#include <array>
#include <string_view>

namespace mylos {

namespace {

/// By CommOperation; a barrier has no wait. Events are named by literals.
constexpr std::array<std::string_view, num_operations - 1> wait_names = {
    "all_reduce wait", "reduce_scatter wait", "all_gather wait", "broadcast wait", "reduce wait",
    "all_to_all wait", "all_to_all_v wait",   "send wait",       "recv wait"};

class TracedRequest final : public RequestState {
 public:
  TracedRequest(Request inner, Trace& trace, std::string_view name, const char* axes)
      : inner_(std::move(inner)), trace_(trace), name_(name), axes_(axes) {}

  void wait() override {
    Trace::Scope event = trace_.record(name_, TraceKind::communication);
    event.taken_by(axes_);
    inner_.wait();
  }
  void host_wait() override {
    Trace::Scope event = trace_.record(name_, TraceKind::communication);
    event.taken_by(axes_);
    inner_.host_wait();
  }
  bool test() override { return inner_.test(); }

 private:
  Request inner_;
  Trace& trace_;
  std::string_view name_;
  const char* axes_;
};

}  // namespace

Request TracedCommunicator::start(const CommCall& call) {
  if (!trace_.on()) return call.on(next());
  Trace::Scope event = trace_.record(name_of(call.operation), TraceKind::communication);
  event.taken_by(axes_.c_str());
  const std::string_view wait_name = wait_names[static_cast<std::size_t>(call.operation)];
  return Request(std::make_unique<TracedRequest>(call.on(next()), trace_, wait_name, axes_.c_str()));
}

void TracedCommunicator::barrier() {
  Trace::Scope event = trace_.record("barrier", TraceKind::communication);
  event.taken_by(axes_.c_str());
  next().barrier();
}

void TracedCommunicator::progress() {
  Trace::Scope event = trace_.record("progress", TraceKind::communication);
  event.taken_by(axes_.c_str());
  next().progress();
}

std::unique_ptr<Communicator> TracedCommunicator::split(int color, int key) {
  return std::make_unique<TracedCommunicator>(next().split(color, key), trace_, axes_);
}

}  // namespace mylos
