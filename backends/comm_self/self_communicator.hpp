// SPDX-License-Identifier: BSD-3-Clause
// SelfCommunicator: the group of one rank; an operation is a copy or does nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/communicator.hpp"

namespace mylos::comm_self {

/// One rank. Buffers are device memory of `compute`, or host memory if `compute` is null.
class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(ComputeBackend* compute) : compute_(compute) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }

  Request all_reduce(TensorRef buffer, ReduceOp op) override;
  Request reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) override;
  Request all_gather(TensorRef input, TensorRef output) override;
  Request broadcast(TensorRef buffer, int root) override;
  Request reduce(TensorRef buffer, ReduceOp op, int root) override;
  Request all_to_all(TensorRef input, TensorRef output) override;
  Request all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts, TensorRef output,
                       std::span<const std::int64_t> recv_counts) override;
  /// Sends and receives of the same tag match in the order in which they are posted. Waiting for a message
  /// whose partner was never posted throws, because the wait could never end.
  Request send(TensorRef buffer, int peer, int tag) override;
  Request recv(TensorRef buffer, int peer, int tag) override;
  void barrier() override {}
  std::unique_ptr<Communicator> split(int color, int key) override;
  [[noreturn]] void abort(ExitCode code, const std::string& message) override;

 private:
  struct Message {
    TensorRef buffer;
    int tag;
    bool is_send;
    std::shared_ptr<bool> matched;
  };

  void copy(TensorRef from, TensorRef to);
  Request post(Message message);

  ComputeBackend* compute_;
  std::vector<Message> unmatched_;
};

}  // namespace mylos::comm_self
