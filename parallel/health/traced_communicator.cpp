// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/traced_communicator.hpp"

namespace mylos {

namespace {

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

template <class Call>
Request TracedCommunicator::traced(std::string_view name, std::string_view wait_name, const Call& call) {
  if (!trace_.on()) return call();
  Trace::Scope event = trace_.record(name, TraceKind::communication);
  event.taken_by(axes_.c_str());
  return Request(std::make_unique<TracedRequest>(call(), trace_, wait_name, axes_.c_str()));
}

Request TracedCommunicator::all_reduce(TensorRef buffer, ReduceOp op) {
  return traced("all_reduce", "all_reduce wait", [&] { return next().all_reduce(buffer, op); });
}

Request TracedCommunicator::reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) {
  return traced("reduce_scatter", "reduce_scatter wait",
                [&] { return next().reduce_scatter(input, output, op); });
}

Request TracedCommunicator::all_gather(TensorRef input, TensorRef output) {
  return traced("all_gather", "all_gather wait", [&] { return next().all_gather(input, output); });
}

Request TracedCommunicator::broadcast(TensorRef buffer, int root) {
  return traced("broadcast", "broadcast wait", [&] { return next().broadcast(buffer, root); });
}

Request TracedCommunicator::reduce(TensorRef buffer, ReduceOp op, int root) {
  return traced("reduce", "reduce wait", [&] { return next().reduce(buffer, op, root); });
}

Request TracedCommunicator::all_to_all(TensorRef input, TensorRef output) {
  return traced("all_to_all", "all_to_all wait", [&] { return next().all_to_all(input, output); });
}

Request TracedCommunicator::all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts,
                                         TensorRef output, std::span<const std::int64_t> recv_counts) {
  return traced("all_to_all_v", "all_to_all_v wait",
                [&] { return next().all_to_all_v(input, send_counts, output, recv_counts); });
}

Request TracedCommunicator::send(TensorRef buffer, int peer, int tag) {
  return traced("send", "send wait", [&] { return next().send(buffer, peer, tag); });
}

Request TracedCommunicator::recv(TensorRef buffer, int peer, int tag) {
  return traced("recv", "recv wait", [&] { return next().recv(buffer, peer, tag); });
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
