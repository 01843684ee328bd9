// SPDX-License-Identifier: BSD-3-Clause
// ForwardingCommunicator: the base class of a layer that overrides some operations and passes the rest on to
// `next`.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/communication/communicator.hpp"

namespace mylos {

/// The communicator below a layer. One passed by reference is borrowed and must outlive the layer; one passed
/// by unique_ptr is owned.
class NextCommunicator {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a layer takes either
  NextCommunicator(Communicator& borrowed) : communicator_(&borrowed) {}
  template <std::derived_from<Communicator> Layer>
  // NOLINTNEXTLINE(google-explicit-constructor)
  NextCommunicator(std::unique_ptr<Layer> owned) : owned_(std::move(owned)), communicator_(owned_.get()) {}

  Communicator& operator*() const { return *communicator_; }
  Communicator* operator->() const { return communicator_; }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator* communicator_;
};

/// A request of a layer. Its waits call `around(wait)`; `wait()` waits for the request below.
template <class Around>
class LayerRequest final : public RequestState {
 public:
  LayerRequest(Request below, Around around) : below_(std::move(below)), around_(std::move(around)) {}
  void wait() override {
    around_([&] { below_.wait(); });
  }
  void host_wait() override {
    around_([&] { below_.host_wait(); });
  }
  bool test() override { return below_.test(); }

 private:
  Request below_;
  Around around_;
};

/// The base class of a communicator that handles every collective and message except barriers in one
/// function, `start`.
class CallCommunicator : public Communicator {
 public:
  Request all_reduce(TensorRef buffer, ReduceOp op) override {
    return start({CommOperation::all_reduce, buffer, buffer, op});
  }
  Request reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) override {
    return start({CommOperation::reduce_scatter, input, output, op});
  }
  Request all_gather(TensorRef input, TensorRef output) override {
    return start({CommOperation::all_gather, input, output});
  }
  Request broadcast(TensorRef buffer, int root) override {
    return start({.operation = CommOperation::broadcast, .input = buffer, .output = buffer, .peer = root});
  }
  Request reduce(TensorRef buffer, ReduceOp op, int root) override {
    return start({CommOperation::reduce, buffer, buffer, op, root});
  }
  Request all_to_all(TensorRef input, TensorRef output) override {
    return start({CommOperation::all_to_all, input, output});
  }
  Request all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts, TensorRef output,
                       std::span<const std::int64_t> recv_counts) override {
    return start({.operation = CommOperation::all_to_all_v,
                  .input = input,
                  .output = output,
                  .send_counts = send_counts,
                  .recv_counts = recv_counts});
  }
  Request send(TensorRef buffer, int peer, int tag) override {
    return start({CommOperation::send, buffer, buffer, ReduceOp::sum, peer, tag});
  }
  Request recv(TensorRef buffer, int peer, int tag) override {
    return start({CommOperation::recv, buffer, buffer, ReduceOp::sum, peer, tag});
  }

 protected:
  /// Receives every collective and message except barriers.
  virtual Request start(const CommCall& call) = 0;
};

class ForwardingCommunicator : public CallCommunicator {
 public:
  explicit ForwardingCommunicator(NextCommunicator next) : next_(std::move(next)) {}

  int rank() const override { return next_->rank(); }
  int size() const override { return next_->size(); }

  void begin_messages() override { next_->begin_messages(); }
  void end_messages() override { next_->end_messages(); }
  void barrier() override { next_->barrier(); }
  void progress() override { next_->progress(); }
  Window allocate(std::size_t bytes) override { return next_->allocate(bytes); }
  std::unique_ptr<Communicator> split(int color, int key) override { return next_->split(color, key); }
  [[noreturn]] void abort(ExitCode code, const std::string& message) override {
    next_->abort(code, message);
    std::abort();  // GCC ignores [[noreturn]] on virtual calls
  }

 protected:
  Request start(const CommCall& call) override { return call.on(next()); }

  Communicator& next() const { return *next_; }
  /// Returns a request whose waits call `around(wait)`; `wait()` waits for `below`.
  template <class Around>
  static Request with_waits(Request below, Around around) {
    return Request(std::make_unique<LayerRequest<Around>>(std::move(below), std::move(around)));
  }

 private:
  NextCommunicator next_;
};

}  // namespace mylos
