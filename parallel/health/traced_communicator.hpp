// SPDX-License-Identifier: BSD-3-Clause
// TracedCommunicator: records the calls and waits of another communicator while a trace is on.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/communication/forwarding_communicator.hpp"
#include "core/trace/trace.hpp"

namespace mylos {

/// Records how long the calling thread spends in each collective, message, `progress` and wait: the
/// communication that computation does not hide. Only the trace's thread may use this communicator.
class TracedCommunicator final : public ForwardingCommunicator {
 public:
  /// `axes` is the group's name in the events. The events point to it, so they must not outlive this object.
  /// `trace` must outlive this object.
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
