// SPDX-License-Identifier: BSD-3-Clause
// TracedCommunicator: another communicator whose calls and waits are recorded while a trace is on.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/forwarding_communicator.hpp"
#include "core/trace.hpp"

namespace mylos {

/// Records how long the calling thread spends in each call, including `progress` and `barrier`, and in each
/// wait: the communication that computation does not hide. Only the trace's thread may use this communicator.
class TracedCommunicator final : public ForwardingCommunicator {
 public:
  /// `axes` names the axes of the group in the events, which refer to it and must not outlive this. `trace`
  /// must outlive this.
  TracedCommunicator(NextCommunicator next, Trace& trace, std::string axes)
      : ForwardingCommunicator(std::move(next)), trace_(trace), axes_(std::move(axes)) {}

  void barrier() override;
  void progress() override;
  /// The new communicator is traced too.
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  /// Records the call and its wait.
  Request start(const CommCall& call) override;
  Trace::Scope record(std::string_view name) {
    return trace_.record(name, TraceKind::communication, {}, axes_.c_str());
  }

  Trace& trace_;
  std::string axes_;
};

}  // namespace mylos
