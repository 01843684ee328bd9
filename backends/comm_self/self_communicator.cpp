// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_self/self_communicator.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace mylos::comm_self {

namespace {

class SelfMessageRequest final : public RequestState {
 public:
  explicit SelfMessageRequest(std::shared_ptr<bool> matched) : matched_(std::move(matched)) {}
  void host_wait() override { require(*matched_, "a message to oneself has both a send and a recv"); }
  bool test() override { return *matched_; }

 private:
  std::shared_ptr<bool> matched_;
};

}  // namespace

void SelfCommunicator::copy(TensorRef from, TensorRef to) {
  require(from.contiguous() && to.contiguous(), "communication buffers are contiguous");
  require(from.dtype == to.dtype && from.size() == to.size(), "both buffers have the same size and type");
  if (from.data == to.data || from.size() == 0) return;
  if (compute_ != nullptr) {
    compute_->copy(from.data, to.data, from.bytes());
  } else {
    std::memcpy(to.data, from.data, from.bytes());
  }
}

Request SelfCommunicator::all_reduce(TensorRef /*buffer*/, ReduceOp /*op*/) {
  return {};
}

Request SelfCommunicator::reduce_scatter(TensorRef input, TensorRef output, ReduceOp /*op*/) {
  copy(input, output);
  return {};
}

Request SelfCommunicator::all_gather(TensorRef input, TensorRef output) {
  copy(input, output);
  return {};
}

Request SelfCommunicator::broadcast(TensorRef /*buffer*/, int root) {
  require(root == 0, "root is a rank of the group");
  return {};
}

Request SelfCommunicator::reduce(TensorRef /*buffer*/, ReduceOp /*op*/, int root) {
  require(root == 0, "root is a rank of the group");
  return {};
}

Request SelfCommunicator::all_to_all(TensorRef input, TensorRef output) {
  copy(input, output);
  return {};
}

Request SelfCommunicator::all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts,
                                       TensorRef output, std::span<const std::int64_t> recv_counts) {
  require(send_counts.size() == 1 && recv_counts.size() == 1, "one count for each rank");
  copy(input.flat(0, send_counts[0]), output.flat(0, recv_counts[0]));
  return {};
}

Request SelfCommunicator::post(Message message) {
  const auto partner = std::find_if(unmatched_.begin(), unmatched_.end(), [&](const Message& other) {
    return other.tag == message.tag && other.is_send != message.is_send;
  });
  Request request(std::make_unique<SelfMessageRequest>(message.matched));
  if (partner == unmatched_.end()) {
    unmatched_.push_back(std::move(message));
    return request;
  }
  const Message& sent = message.is_send ? message : *partner;
  const Message& received = message.is_send ? *partner : message;
  copy(sent.buffer, received.buffer);
  *sent.matched = true;
  *received.matched = true;
  unmatched_.erase(partner);
  return request;
}

Request SelfCommunicator::send(TensorRef buffer, int peer, int tag) {
  require(peer == 0, "peer is a rank of the group");
  return post({buffer, tag, true, std::make_shared<bool>(false)});
}

Request SelfCommunicator::recv(TensorRef buffer, int peer, int tag) {
  require(peer == 0, "peer is a rank of the group");
  return post({buffer, tag, false, std::make_shared<bool>(false)});
}

std::unique_ptr<Communicator> SelfCommunicator::split(int /*color*/, int /*key*/) {
  return std::make_unique<SelfCommunicator>(compute_);
}

void SelfCommunicator::abort(ExitCode code, const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::fflush(stderr);
  std::_Exit(static_cast<int>(code));
}

}  // namespace mylos::comm_self
