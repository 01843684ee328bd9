// SPDX-License-Identifier: BSD-3-Clause
// Communicator: the collective and point-to-point operations of a group of ranks, over any transport.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/allocation.hpp"
#include "core/base/error.hpp"
#include "core/base/tensor.hpp"

namespace mylos {

enum class ReduceOp : std::uint8_t { sum, max, min };

/// An operation in flight. Destroying it before it has been waited for is a defect in the caller.
class RequestState {
 public:
  virtual ~RequestState() = default;
  /// Makes work that is queued on the compute backend afterwards start after the operation. Does not block
  /// the host if communicator and backend can keep this order on a device.
  virtual void wait() { host_wait(); }
  /// Blocks the host until the operation is complete.
  virtual void host_wait() = 0;
  /// Advances the operation as far as possible without blocking. Returns whether the operation is complete:
  /// if so, a wait no longer depends on other ranks. The buffers may be used only after that wait.
  virtual bool test() = 0;
};

/// Owns an operation in flight; empty if the operation completed immediately. Move-only.
class Request {
 public:
  Request() = default;
  explicit Request(std::unique_ptr<RequestState> state) : state_(std::move(state)) {}

  void wait() {
    if (state_) state_->wait();
    state_.reset();
  }
  void host_wait() {
    if (state_) state_->host_wait();
    state_.reset();
  }
  bool test() { return !state_ || state_->test(); }

 private:
  std::unique_ptr<RequestState> state_;
};

/// Memory of a communicator, which its ranks share if they can.
using Window = Allocation;

/// A group of ranks. An operation that returns a Request need not be complete when the call returns. It
/// starts after the work that was queued on the communicator's compute backend before the call, and may use
/// its buffers until the request has been waited for. Buffers are contiguous fp32, bf16, fp16, int32, int64
/// or uint8 (which is moved but never reduced); counts may be 0. All ranks of the group call collectives in
/// the same order with the same sizes (except the counts of all_to_all_v). An operation that fails throws an
/// Error or, if the transport fails, ends the job through `abort`.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// buffer = reduction of all ranks' buffers, in place; bitwise the same on every rank.
  virtual Request all_reduce(TensorRef buffer, ReduceOp op) = 0;
  /// output (n) = this rank's part of the reduction of every rank's input (n * size); output may be this
  /// rank's place in input.
  virtual Request reduce_scatter(TensorRef input, TensorRef output, ReduceOp op) = 0;
  /// output (n * size) = every rank's input (n); input may be this rank's place in output.
  virtual Request all_gather(TensorRef input, TensorRef output) = 0;
  virtual Request broadcast(TensorRef buffer, int root) = 0;
  /// buffer of `root` = reduction of all ranks' buffers; the other ranks' buffers do not change.
  virtual Request reduce(TensorRef buffer, ReduceOp op, int root) = 0;
  /// Part i of rank r's input (n * size) becomes part r of rank i's output.
  virtual Request all_to_all(TensorRef input, TensorRef output) = 0;
  /// all_to_all with element counts per rank; parts follow one another without gaps.
  virtual Request all_to_all_v(TensorRef input, std::span<const std::int64_t> send_counts, TensorRef output,
                               std::span<const std::int64_t> recv_counts) = 0;
  virtual Request send(TensorRef buffer, int peer, int tag) = 0;
  virtual Request recv(TensorRef buffer, int peer, int tag) = 0;
  /// The messages posted between these calls are posted together: none of them waits for another to be met.
  /// For backends whose messages otherwise meet one after another. Messages are awaited after end_messages.
  virtual void begin_messages() {}
  virtual void end_messages() {}
  /// Blocks the host until every rank has called it.
  virtual void barrier() = 0;

  /// Advances the operations in flight on all communicators of this process and backend, for backends that
  /// advance them only inside calls. Never blocks; any thread may call it.
  virtual void progress() {}

  /// Allocates memory that this backend moves fastest (shared or registered memory), aligned to pages and
  /// filled with zeros; returns an empty window if any memory is as good. Collective, with the same size on
  /// all ranks. In a collective of this communicator, either all ranks pass such memory at the same offset,
  /// or no rank passes it. Each rank frees its window independently, in any order, once the requests on it
  /// have been waited for; the window may outlive the communicator.
  virtual Window allocate(std::size_t /*bytes*/) { return {}; }

  /// Returns a communicator of the ranks that pass the same `color`, ordered by `key`. Collective.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Ends the job on all ranks with this exit code; does not return.
  [[noreturn]] virtual void abort(ExitCode code, const std::string& message) = 0;
};

/// The collectives and messages of a communicator.
enum class CommOperation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  all_to_all,
  all_to_all_v,
  send,
  recv,
  barrier,
};
inline constexpr int num_operations = 10;

constexpr std::string_view name_of(CommOperation operation) {
  constexpr std::array<std::string_view, num_operations> names = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
      "all_to_all", "all_to_all_v",   "send",       "recv",      "barrier"};
  return names[static_cast<std::size_t>(operation)];
}

/// A call to a communicator, as data. If an operation has only one buffer, the buffer is both input and
/// output.
struct CommCall {
  CommOperation operation;
  TensorRef input{}, output{};
  ReduceOp reduction = ReduceOp::sum;
  int peer = 0;  ///< the root of broadcast and reduce, the other rank of send and recv
  int tag = 0;
  std::span<const std::int64_t> send_counts{}, recv_counts{};  ///< of all_to_all_v

  /// Makes the call.
  Request on(Communicator& communicator) const;
  /// Returns the size in bytes of one buffer argument, regardless of what an algorithm sends for it: the
  /// buffer of all_reduce, broadcast, reduce, send and recv, the input of reduce_scatter and all_to_all, the
  /// output of all_gather, and the elements that the send counts of all_to_all_v cover.
  std::uint64_t payload_bytes() const;
};

}  // namespace mylos
