// SPDX-License-Identifier: BSD-3-Clause
#include "core/communication/communicator.hpp"

#include <numeric>

namespace mylos {

Request CommCall::on(Communicator& communicator) const {
  switch (operation) {
    case CommOperation::all_reduce:
      return communicator.all_reduce(input, reduction);
    case CommOperation::reduce_scatter:
      return communicator.reduce_scatter(input, output, reduction);
    case CommOperation::all_gather:
      return communicator.all_gather(input, output);
    case CommOperation::broadcast:
      return communicator.broadcast(input, peer);
    case CommOperation::reduce:
      return communicator.reduce(input, reduction, peer);
    case CommOperation::all_to_all:
      return communicator.all_to_all(input, output);
    case CommOperation::all_to_all_v:
      return communicator.all_to_all_v(input, send_counts, output, recv_counts);
    case CommOperation::send:
      return communicator.send(input, peer, tag);
    case CommOperation::recv:
      return communicator.recv(output, peer, tag);
    case CommOperation::barrier:
      communicator.barrier();
  }
  return {};
}

std::uint64_t CommCall::payload_bytes() const {
  if (operation == CommOperation::all_to_all_v) {
    const auto elements = std::accumulate(send_counts.begin(), send_counts.end(), std::int64_t{0});
    return static_cast<std::uint64_t>(elements) * size_of(input.dtype);
  }
  return operation == CommOperation::all_gather ? output.bytes() : input.bytes();
}

}  // namespace mylos
