// SPDX-License-Identifier: BSD-3-Clause
// A stand-in for CUDA's streams and NCCL: ranks are threads, and messages meet in order, without tags and
// buffers.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <string>

namespace mylos::nccl_stand_in {

/// What NCCL may do or not.
struct Behaviour {
  std::uint32_t seed = 1;  ///< of the order in which streams advance, and of how long calls are in progress
  /// Whether the call that posts the first message of a rank to another stays in progress until the other has
  /// posted its side: ranks connect when they first need to.
  bool connects_in_calls = false;
};

/// Runs `body(rank)` on a thread per rank. Returns the first problem, or an empty text.
///
/// Streams advance as late as possible, only while a host waits, one operation at a time, in a random order.
/// A message, or a group of messages, is one operation of its stream. Its messages proceed together; each
/// ends when the other side's stream has come to it too. Both sides of a channel (a communicator, a sender
/// and a receiver) meet in the order in which they were posted, with the same size and type. A call to a
/// communicator is in progress for some polls before its operation is in the stream.
///
/// If no stream can advance and every host waits, the problem names what each rank waits for, and all waits
/// end with an error. This does not depend on time: a wait or query in vain returns only after a change. So a
/// host may query only in a loop until it is done.
std::string run_on_threads(int ranks, const Behaviour& behaviour, const std::function<void(int)>& body);

/// Ends the run with this problem, unless there has been one.
void report(const std::string& problem);

/// Queues work, which returns a problem or an empty text. It must not call CUDA or NCCL.
void launch(cudaStream_t stream, std::function<std::string()> kernel);

}  // namespace mylos::nccl_stand_in
