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

Request SelfCommunicator::start(const CommCall& call) {
  const bool is_send = call.operation == CommOperation::send;
  if (is_send || call.operation == CommOperation::recv) {
    require(call.peer == 0, "peer is a rank of the group");
    return post({call.input, call.tag, is_send, std::make_shared<bool>(false)});
  }
  require(call.peer == 0, "root is a rank of the group");
  if (call.operation == CommOperation::all_to_all_v) {
    require(call.send_counts.size() == 1 && call.recv_counts.size() == 1, "one count for each rank");
    copy(call.input.flat(0, call.send_counts[0]), call.output.flat(0, call.recv_counts[0]));
  } else {
    copy(call.input, call.output);  // the same buffer in all_reduce, broadcast and reduce
  }
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

std::unique_ptr<Communicator> SelfCommunicator::split(int /*color*/, int /*key*/) {
  return std::make_unique<SelfCommunicator>(compute_);
}

void SelfCommunicator::abort(ExitCode code, const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::fflush(stderr);
  std::_Exit(static_cast<int>(code));
}

}  // namespace mylos::comm_self
