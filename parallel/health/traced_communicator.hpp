// SPDX-License-Identifier: BSD-3-Clause
// TracedCommunicator: another communicator whose calls and waits are recorded while a trace is on.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/forwarding_communicator.hpp"
#include "core/trace.hpp"

namespace mylos {

/// Records how long the calling thread spends in each call, including `progress` and `barrier`, and in each
/// wait: the communication that nothing hides. Only the trace's thread may use this communicator.
class TracedCommunicator final : public ForwardingCommunicator {
 public:
  /// `axes` names the axes of the group in the events, which must not outlive this. `trace` must outlive
  /// this.
  TracedCommunicator(NextCommunicator next, Trace& trace, std::string axes)
      : ForwardingCommunicator(std::move(next)), trace_(trace), axes_(std::move(axes)) {}

  Request all_reduce(TensorRef buffer, ReduceOp op) override;
  Request reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) override;
  Request all_gather(TensorRef input, TensorRef output) override;
  Request broadcast(TensorRef buffer, int root) override;
  Request reduce(TensorRef buffer, ReduceOp op, int root) override;
  Request all_to_all(TensorRef input, TensorRef output) override;
  Request all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts, TensorRef output,
                       std::span<const std::int64_t> recv_counts) override;
  Request send(TensorRef buffer, int peer, int tag) override;
  Request recv(TensorRef buffer, int peer, int tag) override;
  void barrier() override;
  void progress() override;
  /// The new communicator is traced too.
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  /// Starts an operation by `call` and records the call and its wait.
  template <class Call>
  Request traced(std::string_view name, std::string_view wait_name, const Call& call);

  Trace& trace_;
  std::string axes_;
};

}  // namespace mylos
