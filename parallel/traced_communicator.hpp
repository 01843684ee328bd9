// SPDX-License-Identifier: BSD-3-Clause
// TracedCommunicator: another communicator, whose calls and waits are recorded while a trace is on.
#pragma once

#include <memory>

#include "core/communicator.hpp"
#include "core/trace.hpp"

namespace mylos {

/// Records how long the calling thread spends in each call, `progress` and `barrier` included, and in each
/// wait: the communication that nothing hides. Not for use by another thread than the trace's.
class TracedCommunicator final : public Communicator {
 public:
  /// `trace` and a borrowed `inner` must outlive this.
  TracedCommunicator(Communicator& inner, Trace& trace) : inner_(&inner), trace_(trace) {}
  TracedCommunicator(std::unique_ptr<Communicator> inner, Trace& trace)
      : owned_(std::move(inner)), inner_(owned_.get()), trace_(trace) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  CommunicatorCaps caps() const override { return inner_->caps(); }

  Request all_reduce(Stream stream, TensorRef buffer, ReduceOp op) override;
  Request reduce_scatter(Stream stream, TensorRef input, TensorRef output, ReduceOp op) override;
  Request all_gather(Stream stream, TensorRef input, TensorRef output) override;
  Request broadcast(Stream stream, TensorRef buffer, int root) override;
  Request reduce(Stream stream, TensorRef buffer, ReduceOp op, int root) override;
  Request all_to_all(Stream stream, TensorRef input, TensorRef output) override;
  Request all_to_all_v(Stream stream, TensorRef input, std::span<const std::int64_t> send_counts,
                       TensorRef output, std::span<const std::int64_t> recv_counts) override;
  Request send(Stream stream, TensorRef buffer, int peer, int tag) override;
  Request recv(Stream stream, TensorRef buffer, int peer, int tag) override;
  void barrier() override;
  void group_begin() override { inner_->group_begin(); }
  void group_end() override;
  void progress() override;
  void* allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  /// The part is traced too.
  std::unique_ptr<Communicator> split(int color, int key) override;
  [[noreturn]] void abort(ExitCode code, const std::string& message) override;

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator* inner_;
  Trace& trace_;
};

}  // namespace mylos
