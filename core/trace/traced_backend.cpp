// SPDX-License-Identifier: BSD-3-Clause
#include "core/trace/traced_backend.hpp"

#include "core/base/watched_call.hpp"

namespace mylos {

namespace {

/// Returns the shape of the weights of a linear layer, or 0 x 0 for other operations.
LinearShape shape_of(const auto& op) {
  if constexpr (requires { op.w; }) {
    return {op.w.shape[0], op.w.shape[1]};
  } else if constexpr (requires { op.dw; }) {
    return {op.dw.shape[0], op.dw.shape[1]};
  } else {
    return {};
  }
}

/// A call that ends only if the backend computes.
WatchedCall watch(std::string_view call) {
  return {CallKind::computation, "compute", call};
}

}  // namespace

template <class Op>
bool TracedBackend::Recorder::run(const Op& op) {
  const WatchedCall call = watch(Op::name);
  Trace::Scope event = trace.record(Op::name, TraceKind::operation, shape_of(op));
  const char* backend = next.take(op);
  event.taken_by(backend);
  return backend != nullptr;
}

TracedBackend::TracedBackend(ComputeBackend& next, Trace& trace)
    : ForwardingBackend(next, OperationTable()), recorder_{next.operations(), trace} {
  add_operations(Operations(), recorder_, "trace");
}

void TracedBackend::copy_to_device(const void* host, void* device, std::size_t bytes) {
  const WatchedCall call = watch("copy_to_device");
  const Trace::Scope event = recorder_.trace.record("copy_to_device");
  next().copy_to_device(host, device, bytes);
}

void TracedBackend::copy_to_host(const void* device, void* host, std::size_t bytes) {
  const WatchedCall call = watch("copy_to_host");
  const Trace::Scope event = recorder_.trace.record("copy_to_host");
  next().copy_to_host(device, host, bytes);
}

void TracedBackend::copy(const void* from, void* to, std::size_t bytes) {
  const WatchedCall call = watch("copy");
  const Trace::Scope event = recorder_.trace.record("copy");
  next().copy(from, to, bytes);
}

Allocation TracedBackend::allocate(std::size_t bytes, const char* label) {
  const WatchedCall call = watch("allocate");
  return next().allocate(bytes, label);
}

void TracedBackend::synchronize() {
  const WatchedCall call = watch("synchronize");
  next().synchronize();
}

void TracedBackend::host_wait(const Event& event) {
  const WatchedCall call = watch("host_wait");
  next().host_wait(event);
}

bool TracedBackend::launch(const Graph& graph) {
  const WatchedCall call = watch("graph");
  return next().launch(graph);
}

}  // namespace mylos
