// SPDX-License-Identifier: BSD-3-Clause
// SelfCommunicator: the group of one rank; an operation is a copy or does nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/communication/forwarding_communicator.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos::comm_self {

/// One rank. Buffers are device memory of `compute`, or host memory if `compute` is null. Sends and receives
/// of the same tag match in the order in which they are posted. Waiting for a message whose partner has not
/// been posted throws, because the wait could never end.
class SelfCommunicator final : public CallCommunicator {
 public:
  explicit SelfCommunicator(ComputeBackend* compute) : compute_(compute) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }

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

  Request start(const CommCall& call) override;
  void copy(TensorRef from, TensorRef to);
  Request post(Message message);

  ComputeBackend* compute_;
  std::vector<Message> unmatched_;
};

}  // namespace mylos::comm_self
