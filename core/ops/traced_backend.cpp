// SPDX-License-Identifier: BSD-3-Clause
#include "core/ops/traced_backend.hpp"

namespace mylos {

namespace {

/// Of the weights, if these lead from one dimension to another.
template <class Op>
LinearShape shape_of(const Op& op) {
  if constexpr (requires { op.w; }) {
    return {op.w.shape[0], op.w.shape[1]};
  } else if constexpr (requires { op.dw; }) {
    return {op.dw.shape[0], op.dw.shape[1]};
  } else {
    return {};
  }
}

}  // namespace

template <class Op>
bool TracedBackend::Recorder::run(Stream stream, const Op& op) {
  Trace::Scope event = trace.record(Op::name, stream, TraceKind::operation, shape_of(op));
  const char* backend = next.take(stream, op);
  event.taken_by(backend);
  return backend != nullptr;
}

TracedBackend::TracedBackend(ComputeBackend& next, Trace& trace)
    : ForwardingBackend(next, OperationTable()), recorder_{next.operations(), trace} {
  add_operations(Operations(), recorder_, "trace");
}

void TracedBackend::copy_to_device(Stream stream, const void* host, void* device, std::size_t bytes) {
  const Trace::Scope event = recorder_.trace.record("copy_to_device", stream);
  next().copy_to_device(stream, host, device, bytes);
}

void TracedBackend::copy_to_host(Stream stream, const void* device, void* host, std::size_t bytes) {
  const Trace::Scope event = recorder_.trace.record("copy_to_host", stream);
  next().copy_to_host(stream, device, host, bytes);
}

void TracedBackend::copy(Stream stream, const void* from, void* to, std::size_t bytes) {
  const Trace::Scope event = recorder_.trace.record("copy", stream);
  next().copy(stream, from, to, bytes);
}

}  // namespace mylos
