// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/traced_communicator.hpp"

#include <string_view>

namespace mylos {

namespace {

class TracedRequest final : public RequestState {
 public:
  TracedRequest(Request inner, Trace& trace, std::string_view name)
      : inner_(std::move(inner)), trace_(trace), name_(name) {}

  void wait() override {
    const Trace::Scope event = trace_.record(name_, TraceKind::communication);
    inner_.wait();
  }
  void host_wait() override {
    const Trace::Scope event = trace_.record(name_, TraceKind::communication);
    inner_.host_wait();
  }
  bool test() override { return inner_.test(); }

 private:
  Request inner_;
  Trace& trace_;
  std::string_view name_;
};

/// Starts an operation by `call` and records that and its wait.
template <class Call>
Request traced(Trace& trace, std::string_view name, std::string_view wait_name, Call call) {
  if (!trace.on()) return call();
  const Trace::Scope event = trace.record(name, TraceKind::communication);
  return Request(std::make_unique<TracedRequest>(call(), trace, wait_name));
}

}  // namespace

Request TracedCommunicator::all_reduce(TensorRef buffer, ReduceOp op) {
  return traced(trace_, "all_reduce", "all_reduce wait", [&] { return next().all_reduce(buffer, op); });
}

Request TracedCommunicator::reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) {
  return traced(trace_, "reduce_scatter", "reduce_scatter wait",
                [&] { return next().reduce_scatter(input, output, op); });
}

Request TracedCommunicator::all_gather(TensorRef input, TensorRef output) {
  return traced(trace_, "all_gather", "all_gather wait", [&] { return next().all_gather(input, output); });
}

Request TracedCommunicator::broadcast(TensorRef buffer, int root) {
  return traced(trace_, "broadcast", "broadcast wait", [&] { return next().broadcast(buffer, root); });
}

Request TracedCommunicator::reduce(TensorRef buffer, ReduceOp op, int root) {
  return traced(trace_, "reduce", "reduce wait", [&] { return next().reduce(buffer, op, root); });
}

Request TracedCommunicator::all_to_all(TensorRef input, TensorRef output) {
  return traced(trace_, "all_to_all", "all_to_all wait", [&] { return next().all_to_all(input, output); });
}

Request TracedCommunicator::all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts,
                                         TensorRef output, std::span<const std::int64_t> recv_counts) {
  return traced(trace_, "all_to_all_v", "all_to_all_v wait",
                [&] { return next().all_to_all_v(input, send_counts, output, recv_counts); });
}

Request TracedCommunicator::send(TensorRef buffer, int peer, int tag) {
  return traced(trace_, "send", "send wait", [&] { return next().send(buffer, peer, tag); });
}

Request TracedCommunicator::recv(TensorRef buffer, int peer, int tag) {
  return traced(trace_, "recv", "recv wait", [&] { return next().recv(buffer, peer, tag); });
}

void TracedCommunicator::barrier() {
  const Trace::Scope event = trace_.record("barrier", TraceKind::communication);
  next().barrier();
}

void TracedCommunicator::progress() {
  const Trace::Scope event = trace_.record("progress", TraceKind::communication);
  next().progress();
}

std::unique_ptr<Communicator> TracedCommunicator::split(int color, int key) {
  return std::make_unique<TracedCommunicator>(next().split(color, key), trace_);
}

}  // namespace mylos
