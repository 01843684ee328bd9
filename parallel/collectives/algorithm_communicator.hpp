// SPDX-License-Identifier: BSD-3-Clause
// AlgorithmCommunicator: collectives built from any backend's send and receive by a chosen algorithm.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "core/ops/compute_backend.hpp"
#include "parallel/collectives/algorithm_choice.hpp"
#include "parallel/collectives/operation_engine.hpp"
#include "parallel/health/traffic.hpp"

namespace mylos {

/// Runs all_reduce, reduce_scatter, all_gather, broadcast, reduce and all_to_all by the schedules of
/// `choice`, and all_to_all_v as messages that are posted together unless all of it is native. Native
/// collectives and all other operations go to the next communicator. all_reduce is bitwise the same on every
/// rank.
///
/// Every scheduled operation is a state machine that test, wait and progress advance; any number of them may
/// be in flight. A rank that waits for a native operation or in a barrier advances no scheduled operation.
/// Unless another thread calls `progress`, all ranks must therefore wait for native and scheduled operations
/// in the same order. All messages of a scheduled operation carry one tag; successive operations take the
/// tags 16384 to 32765 in turn. The caller's own messages have tags 0 to 16383. The messages of scheduled
/// operations are counted as sends and receives of a separate axis, which shows the bytes on the wire. The
/// output of a scheduled reduce_scatter may lie within its input.
///
/// Buffers of scheduled operations are host memory. Make the next communicator without a compute backend;
/// with one, it would wait for the backend's queue at each message. This class waits for `compute` once, when
/// an operation is called (null: the buffers are complete by then). If another thread calls `progress`, the
/// next communicator must allow calls from both threads.
class AlgorithmCommunicator final : public ForwardingCommunicator {
 public:
  static constexpr int last_user_tag = 16383;

  /// `wire_label` names the axis of the messages. `counter` and `compute` must outlive this. Throws
  /// ExitCode::usage if the host cannot reach the memory of `compute` and `choice` is not native.
  AlgorithmCommunicator(NextCommunicator next, AlgorithmChoice choice, std::string_view wire_label,
                        TrafficCounter& counter, ComputeBackend* compute = nullptr,
                        std::shared_ptr<OperationEngine> engine = std::make_shared<OperationEngine>());

  void progress() override;
  /// The new communicator has the same choice and engine, and the same label for its messages.
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  using ScheduleKey = std::tuple<CommOperation, Algorithm, std::int64_t, int>;

  class ScheduledOperation;

  Request start(const CommCall& call) override;
  /// Makes an all_to_all_v as messages.
  Request exchange(const CommCall& call);
  std::shared_ptr<const CollectiveSchedule> schedule(const CollectiveCall& call, Algorithm algorithm);

  AlgorithmChoice choice_;
  std::string wire_label_;
  TrafficCounter* counter_;
  ComputeBackend* compute_;
  std::shared_ptr<OperationEngine> engine_;
  CountedCommunicator wire_;
  std::map<ScheduleKey, std::shared_ptr<const CollectiveSchedule>> schedules_;
  int next_tag_ = 0;
};

}  // namespace mylos
